package leasehold.client;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;

/** How to acquire. {@link #acquire()} does it; each call is a new claim. It is not safe for use by several threads. */
public final class LockRequest {
    /** The wait of one request: shorter than what most proxies allow a request to take. */
    private static final Duration POLL = Duration.ofSeconds(25);
    private static final Duration BACKOFF_MIN = Duration.ofMillis(100);
    private static final Duration BACKOFF_MAX = Duration.ofSeconds(2);
    /** Longer than any program runs. */
    private static final Duration FOR_EVER = Duration.ofDays(36_500);

    private final LeaseholdClient client;
    private final List<String> names;
    private final Map<String, Object> fields = new HashMap<>();
    private Duration wait = FOR_EVER;
    private String token;
    private int holdCount = 1;

    LockRequest(LeaseholdClient client, List<String> names) {
        this.client = client;
        this.names = names;
    }

    /** How long the lease lasts without renewal, 30 s by default. It is renewed at a third of this. */
    public LockRequest ttl(Duration ttl) {
        return with("ttl", Claim.inMillis(ttl));
    }

    /** How long to wait for the lock: zero does not wait. By default, as long as it takes. */
    public LockRequest waitFor(Duration duration) {
        wait = duration;
        return this;
    }

    /** Holds the lock together with other shared claims: a read lock. */
    public LockRequest shared() {
        return with("mode", "shared");
    }

    /** Takes a permit of a semaphore that has this many. */
    public LockRequest semaphore(int limit) {
        return shared().with("limit", limit);
    }

    /** How many permits of a semaphore to take, 1 by default. */
    public LockRequest permits(int permits) {
        return with("permits", permits);
    }

    /** Who holds, for others to read. */
    public LockRequest owner(String owner) {
        return with("owner", owner);
    }

    /** For others to read: texts, numbers, booleans, and maps and lists of them. */
    public LockRequest metadata(Map<String, ?> metadata) {
        return with("metadata", metadata);
    }

    /** Keeps the lock taken at least this long, even if it is released earlier. */
    public LockRequest minHold(Duration minHold) {
        return with("min_hold", Claim.inMillis(minHold));
    }

    /** Ends the lease after this at the latest, whatever the renewals. */
    public LockRequest maxHold(Duration maxHold) {
        return with("max_hold", Claim.inMillis(maxHold));
    }

    /** Keeps the lock closed for this long after the lease expired or was evicted. */
    public LockRequest lockDelay(Duration lockDelay) {
        return with("lock_delay", Claim.inMillis(lockDelay));
    }

    /** Takes a free lock ahead of the queue. */
    public LockRequest unfair() {
        return with("fair", false);
    }

    /** The token of the claim, a new random UUID by default. */
    public LockRequest token(String token) {
        this.token = token;
        return this;
    }

    /**
     * The depth of re-entry, 1 by default. With the token of a held lease and a larger depth the lock is re-entered;
     * releasing such a lease steps back.
     */
    public LockRequest holdCount(int holdCount) {
        this.holdCount = holdCount;
        return with("hold_count", holdCount);
    }

    private LockRequest with(String name, Object value) {
        fields.put(name, value);
        return this;
    }

    /**
     * Acquires, and waits for it. After an exception the claim is withdrawn.
     *
     * @throws LockHeldException when the wait is over
     * @throws UnavailableException without a useful answer
     * @throws RefusedException for a wrong request
     * @throws InterruptedException if the thread was interrupted
     */
    public Lease acquire() throws InterruptedException {
        // If there is no key, that is the exception, and nothing has to be withdrawn.
        client.checkKey();
        String claimed = token == null ? UUID.randomUUID().toString() : token;
        return new Acquisition(new Claim(names, claimed, holdCount, Map.copyOf(fields))).run();
    }

    /** Repeats the request of one claim until it is granted, refused, or the wait is over. */
    private final class Acquisition {
        private final Claim claim;
        private final Moment begunAt = Moment.now();
        private int failures;
        private Moment failingSince;
        /** Whether the service may have the claim in a queue, or may have granted it. */
        private boolean needsWithdrawal;

        Acquisition(Claim claim) {
            this.claim = claim;
        }

        Lease run() throws InterruptedException {
            boolean isGranted = false;
            try {
                Lease lease = untilGranted();
                isGranted = true;
                return lease;
            } finally {
                if (!isGranted && needsWithdrawal) {
                    // It ends within its time-out.
                    client.send(claim.release()).join();
                }
            }
        }

        private Lease untilGranted() throws InterruptedException {
            while (true) {
                Duration poll = Moment.shorter(waitLeft(), POLL);
                Moment sentAt = Moment.now();
                boolean neededWithdrawal = needsWithdrawal;
                needsWithdrawal = true;
                Answer answer = ask(claim.acquire(poll));
                if (answer.status() == 200 || answer.status() == 201) {
                    Grant grant = Grant.read(answer.body(), claim.names());
                    if (grant == null) {
                        throw new RefusedException(answer);
                    }
                    if (sentAt.elapsed().compareTo(grant.validFor()) < 0) {
                        return new Lease(client, claim, grant, sentAt);
                    }
                    // The answer was too long under way. The next one says what is left.
                    sleep(pauseAfter(answer, sentAt));
                } else if (answer.status() == 423) {
                    failures = 0;
                    needsWithdrawal = neededWithdrawal || !poll.isZero();
                    if (waitLeft().isZero()) {
                        throw new LockHeldException(answer);
                    }
                    // After a wait the next request follows at once, so that the claim keeps its turn; otherwise there is a
                    // pause.
                    Duration least = Moment.longer(BACKOFF_MIN.minus(sentAt.elapsed()), Duration.ZERO);
                    sleep(Moment.shorter(Moment.longer(Moment.later(answer.retryAfter()), least), waitLeft()));
                } else if (answer.isTemporary()) {
                    sleep(pauseAfter(answer, sentAt));
                } else {
                    needsWithdrawal = neededWithdrawal;
                    throw answer.code().equals("claim_ended") ? new LeaseLostException(answer) : new RefusedException(answer);
                }
            }
        }

        private Answer ask(Claim.Call call) throws InterruptedException {
            var answer = client.send(call);
            try {
                return answer.get();
            } catch (InterruptedException interrupted) {
                // Closes the connection, so that the service does not grant to somebody who has left.
                answer.cancel(true);
                throw interrupted;
            } catch (ExecutionException impossible) {
                throw new IllegalStateException(impossible);
            }
        }

        private Duration waitLeft() {
            return Moment.longer(wait.minus(begunAt.elapsed()), Duration.ZERO);
        }

        /** There was no useful answer: when to ask again, unless that has failed for too long. */
        private Duration pauseAfter(Answer answer, Moment sentAt) {
            if (failures == 0) {
                failingSince = sentAt;
            }
            Duration backoff = Moment.shorter(BACKOFF_MIN.multipliedBy(1L << Math.min(failures, 8)), BACKOFF_MAX);
            failures++;
            Duration pause = Moment.longer(Moment.jittered(backoff), Moment.later(answer.retryAfter()));
            if (failingSince.elapsed().plus(pause).compareTo(client.retryFor()) > 0) {
                throw new UnavailableException(answer);
            }
            return pause;
        }
    }

    static void sleep(Duration duration) throws InterruptedException {
        Thread.sleep(duration.toMillis(), duration.toNanosPart() % 1_000_000);
    }
}
