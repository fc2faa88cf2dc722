package leasehold.client;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;

/** A held lock, or several. It is renewed in the background until it is released or lost. */
public final class Lease implements AutoCloseable {
    private static final Duration RENEWAL_TIMEOUT_MAX = Duration.ofSeconds(10);
    private static final int RELEASE_ATTEMPTS = 3;
    private static final System.Logger LOGGER = System.getLogger("leasehold.client");

    private final LeaseholdClient client;
    private final Claim claim;
    private final Map<String, Long> fencingTokens;
    private final CompletableFuture<LeaseLostException> lost = new CompletableFuture<>();
    // The following are guarded by this.
    private Grant grant;
    private Moment confirmedAt;
    /** What the service last refused a renewal with. */
    private Answer refusal;
    private LeaseLostException loss;
    private boolean isReleased;
    /** Completes with whether the service confirmed the release. */
    private final CompletableFuture<Boolean> released = new CompletableFuture<>();

    Lease(LeaseholdClient client, Claim claim, Grant grant, Moment sentAt) {
        this.client = client;
        this.claim = claim;
        this.grant = grant;
        this.confirmedAt = sentAt;
        fencingTokens = grant.fencingTokens();
        scheduleRenewal(grant.ttl().dividedBy(3).minus(sentAt.elapsed()));
    }

    /** The names of the locks. */
    public List<String> names() {
        return claim.names();
    }

    /** Proves the claim. It is secret. */
    public String token() {
        return claim.token();
    }

    /** A number that is larger than that of every earlier grant of this lock. Send it with every write. */
    public long fencingToken() {
        return fencingTokens.get(claim.names().get(0));
    }

    /** The fencing token of each lock, by name. */
    public Map<String, Long> fencingTokens() {
        return fencingTokens;
    }

    /** Whether the lease is certainly ours at this moment. It reads the clock, and so is right before any thread ran. */
    public boolean isHeld() {
        return !remaining().isZero();
    }

    /** How long the lease certainly lasts without another renewal. */
    public Duration remaining() {
        LeaseLostException expired;
        synchronized (this) {
            if (loss != null || isReleased) {
                return Duration.ZERO;
            }
            Duration left = grant.validFor().minus(confirmedAt.elapsed());
            if (!left.isNegative() && !left.isZero()) {
                return left;
            }
            // It stays over, also if an answer to a renewal comes late: the lease was reported as lost.
            expired = loss = LeaseLostException.notRenewed(refusal);
        }
        report(expired);
        return Duration.ZERO;
    }

    /**
     * Completes when the lease is lost, with the reason; never if it is released before that. What depends on it runs on
     * a thread of the HTTP client, so it should be short.
     */
    public CompletableFuture<LeaseLostException> lost() {
        return lost.copy();
    }

    /** Throws the {@link LeaseLostException}, with the reason, if the lease is lost: for use between steps of the work. */
    public void throwIfLost() {
        remaining();
        LeaseLostException reason = loss();
        if (reason != null) {
            throw reason;
        }
    }

    /**
     * Releases the lock, and returns whether the service confirmed it; otherwise the lease ends with its TTL. A second
     * release waits for the first, and returns the same. An interrupt does not stop it; it takes at most 7 s.
     *
     * @throws LeaseLostException if the lease was lost
     */
    public boolean release() {
        if (beginRelease()) {
            boolean isConfirmed = false;
            try {
                isConfirmed = sendRelease();
            } finally {
                released.complete(isConfirmed);
            }
        }
        boolean isConfirmed = released.join();
        LeaseLostException reason = loss();
        if (reason != null) {
            throw reason;
        }
        return isConfirmed;
    }

    /**
     * Releases the lock.
     *
     * @throws LeaseLostException if the lease was lost. An exception of the block comes first, and has it as suppressed.
     */
    @Override
    public void close() {
        release();
    }

    private synchronized LeaseLostException loss() {
        return loss;
    }

    private void lose(LeaseLostException reason) {
        synchronized (this) {
            if (loss != null) {
                return;
            }
            loss = reason;
        }
        report(reason);
    }

    private void report(LeaseLostException reason) {
        // Not on the thread of the caller, who may hold locks that what depends on it wants.
        lost.completeAsync(() -> reason);
    }

    private void scheduleRenewal(Duration pause) {
        Duration shortest = Moment.shorter(pause, remaining());
        client.schedule(this::renew, Moment.longer(shortest, Duration.ZERO));
    }

    private void renew() {
        Duration left = remaining();
        if (left.isZero()) {
            return;
        }
        Duration ttl = ttl();
        Moment sentAt = Moment.now();
        Duration timeout = Moment.shorter(Moment.shorter(ttl.dividedBy(4), RENEWAL_TIMEOUT_MAX), left);
        client.send(claim.renew(timeout)).thenAccept(answer -> {
            Grant renewed = answer.status() == 200 ? Grant.read(answer.body(), claim.names()) : null;
            if (remaining().isZero()) {
                return;
            }
            if (renewed != null) {
                confirm(renewed, sentAt);
                scheduleRenewal(renewed.ttl().dividedBy(3).minus(sentAt.elapsed()));
            } else if (answer.status() == 409 || answer.status() == 412) {
                lose(new LeaseLostException(answer));
            } else {
                if (answer.isRefusal()) {
                    noteRefusal(answer);
                }
                Duration asked = Moment.shorter(Moment.later(answer.retryAfter()), ttl.dividedBy(6));
                scheduleRenewal(Moment.longer(asked, Moment.jittered(ttl.dividedBy(10))));
            }
        });
    }

    private synchronized Duration ttl() {
        return grant.ttl();
    }

    private synchronized void confirm(Grant renewed, Moment sentAt) {
        grant = renewed;
        confirmedAt = sentAt;
        refusal = null;
    }

    /** The key is wrong now, for example. Somebody may correct that in time, so the first refusal is logged. */
    private void noteRefusal(Answer answer) {
        boolean isFirst;
        synchronized (this) {
            isFirst = refusal == null;
            refusal = answer;
        }
        if (isFirst) {
            String names = String.join(" ", claim.names());
            LOGGER.log(System.Logger.Level.WARNING, () -> names + " is not renewed, because the service answered "
                    + answer.status() + ": " + answer.detail());
        }
    }

    /** Whether this is the first release, which has to send it. */
    private boolean beginRelease() {
        // Notices a loss, which it is too late for afterwards.
        remaining();
        synchronized (this) {
            boolean isFirst = !isReleased;
            isReleased = true;
            return isFirst;
        }
    }

    private boolean sendRelease() {
        LeaseLostException reason = loss();
        if (reason != null && reason.status() != 0) {
            // The service itself said that the lease is gone.
            return false;
        }
        // A lease whose time is over here may still keep others waiting, but it is not worth more than one attempt.
        int attempts = reason != null ? 1 : RELEASE_ATTEMPTS;
        for (int attempt = 0; attempt < attempts; attempt++) {
            if (attempt > 0) {
                pause(Duration.ofMillis(ThreadLocalRandom.current().nextLong(200, 400)));
            }
            Answer answer = client.send(claim.release()).join();
            if (answer.status() == 200 || answer.status() == 204) {
                return true;
            }
            if (answer.status() == 412) {
                lose(new LeaseLostException(answer));
            }
            if (!answer.isTemporary()) {
                return false;
            }
        }
        return false;
    }

    private static void pause(Duration duration) {
        try {
            LockRequest.sleep(duration);
        } catch (InterruptedException interrupted) {
            // The next attempt comes sooner, and whoever called sees the interrupt.
            Thread.currentThread().interrupt();
        }
    }
}
