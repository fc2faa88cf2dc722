package leasehold.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** Runs all tests, in the directory clients/java. They need nothing but the JDK, and python3 for the testbed. */
final class Tests {
    private static final Duration SECOND = Duration.ofSeconds(1);

    private final Testbed testbed;
    private final Map<String, Test> tests = new LinkedHashMap<>();

    interface Test {
        void run() throws Exception;
    }

    private Tests(Testbed testbed) throws Exception {
        this.testbed = testbed;
        Scenarios.read().forEach((name, steps) -> tests.put(name, () -> Scenarios.run(testbed, steps)));
        tests.put("an acquire is repeated with the same token", this::repeatedWithTheSameToken);
        tests.put("Retry-After is honoured", this::retryAfterIsHonoured);
        tests.put("retries have a bound, and the claim is withdrawn", this::retriesHaveABound);
        tests.put("nobody listening is unavailable", this::nobodyListening);
        tests.put("a lost answer to a renewal or a release does no harm", this::lostAnswers);
        tests.put("a lease whose renewals hang is lost in time", this::hangingRenewals);
        tests.put("a lease is not held right after a pause beyond its TTL", this::pause);
        tests.put("an interrupted wait leaves the queue", this::interruptedWait);
        tests.put("a block whose lease was lost throws, and its own exception comes first", this::lostBlock);
        tests.put("many waiters do not delay a renewal", this::manyWaiters);
        tests.put("a wrong key is refused at once, and a held lock says who holds it", this::refusals);
        tests.put("JSON is read and written", this::json);
        tests.putAll(new Keys(testbed).tests());
        tests.putAll(new Hostile(testbed).tests());
    }

    public static void main(String[] arguments) throws Exception {
        int failed = 0;
        int passed = 0;
        try (Testbed testbed = new Testbed()) {
            for (Map.Entry<String, Test> test : new Tests(testbed).tests.entrySet()) {
                try {
                    test.getValue().run();
                    passed++;
                } catch (Exception | AssertionError failure) {
                    failed++;
                    System.out.println("FAILED: " + test.getKey());
                    failure.printStackTrace(System.out);
                }
            }
        }
        System.out.printf("%d passed, %d failed%n", passed, failed);
        System.exit(failed == 0 ? 0 : 1);
    }

    static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new AssertionError("not so: " + what);
        }
    }

    static <E extends Exception> E thrown(Class<E> kind, Test what) throws Exception {
        try {
            what.run();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw error;
        }
        throw new AssertionError("nothing is thrown");
    }

    private void repeatedWithTheSameToken() throws Exception {
        for (String kind : List.of("lose_answer", "refuse")) {
            Testbed.Server server = testbed.server();
            server.fault(kind, "POST", 2);
            try (Lease lease = server.client().lock("a").waitFor(Duration.ZERO).acquire()) {
                List<Map<?, ?>> requests = server.requests();
                check(requests.size() == 3 && requests.get(1).get("failed").equals(kind), "two requests failed");
                check(requests.stream().allMatch(request -> request.get("token").equals(lease.token())), "one token");
                check(server.lock("a").get("holders_total").equals(1L), "one holder");
            }
        }
    }

    private void retryAfterIsHonoured() throws Exception {
        Testbed.Server server = testbed.server();
        server.fault("refuse", "POST", 1);
        try (Lease lease = server.client().lock("a").acquire()) {
            List<Map<?, ?>> requests = server.requests();
            long pause = (Long) requests.get(1).get("at_ms") - (Long) requests.get(0).get("at_ms");
            check(lease.isHeld() && pause >= 1000, "no sooner than after a second");
        }
    }

    private void retriesHaveABound() throws Exception {
        Testbed.Server server = testbed.server();
        server.fault("refuse", "POST", 100);
        LockRequest request = server.client(SECOND.multipliedBy(2)).lock("a");
        check(thrown(UnavailableException.class, request::acquire).code().equals("store_unavailable"), "the code");
        List<Map<?, ?>> requests = server.requests();
        check(requests.get(requests.size() - 1).get("method").equals("DELETE"), "it is withdrawn");
    }

    private void nobodyListening() throws Exception {
        LeaseholdClient client = LeaseholdClient.builder("http://127.0.0.1:9").retryFor(SECOND.dividedBy(5)).build();
        check(thrown(UnavailableException.class, client.lock("a")::acquire).status() == 0, "there is no status");
    }

    private void lostAnswers() throws Exception {
        Testbed.Server server = testbed.server();
        Lease lease = server.client().lock("a").ttl(SECOND.multipliedBy(2)).acquire();
        server.fault("lose_answer", "PUT", 1);
        server.fault("lose_answer", "DELETE", 1);
        Testbed.eventually(() -> server.count("PUT") >= 2);
        check(lease.isHeld(), "it is held");
        check(lease.release(), "the release is confirmed");
        check(server.lock("a").get("state").equals("free"), "the lock is free");
    }

    private void hangingRenewals() throws Exception {
        Testbed.Server server = testbed.server();
        server.fault("hang", "PUT", 100);
        Lease lease = server.client().lock("a").ttl(SECOND).acquire();
        LeaseLostException loss = lease.lost().get(30, TimeUnit.SECONDS);
        check(loss.code().equals("lease_expired") && !lease.isHeld(), "it is lost");
        thrown(LeaseLostException.class, lease::release);
    }

    private void pause() throws Exception {
        Lease lease = testbed.server().client().lock("a").ttl(SECOND).acquire();
        testbed.pauseThisProcess(2);
        long before = System.nanoTime();
        for (long now = before; now - before < SECOND.toNanos(); now = System.nanoTime()) {
            before = now;
        }
        // The process was stopped between the last two readings of the clock.
        check(!lease.isHeld(), "it is not held");
        thrown(LeaseLostException.class, lease::throwIfLost);
        thrown(LeaseLostException.class, lease::release);
    }

    private void interruptedWait() throws Exception {
        Testbed.Server server = testbed.server();
        LeaseholdClient client = server.client();
        try (Lease lease = client.lock("a").acquire()) {
            FutureTask<Lease> waiting = new FutureTask<>(client.lock("a")::acquire);
            Thread thread = new Thread(waiting);
            thread.start();
            Testbed.eventually(() -> server.lock("a").get("queue_length").equals(1L));
            thread.interrupt();
            ExecutionException failure = thrown(ExecutionException.class, waiting::get);
            check(failure.getCause() instanceof InterruptedException, "it is interrupted");
            check(server.lock("a").get("queue_length").equals(0L), "the queue is empty");
            check(lease.isHeld() && server.count("DELETE") == 1, "the other claim is as it was");
        }
    }

    private void lostBlock() throws Exception {
        Testbed.Server server = testbed.server();
        LeaseholdClient client = server.client();
        LeaseLostException loss = thrown(LeaseLostException.class, () -> {
            try (Lease lease = client.lock("a").ttl(SECOND).acquire()) {
                server.call("POST", "evict?name=a");
                lease.lost().join();
            }
        });
        check(loss.code().equals("lease_evicted"), loss.code());
        ArithmeticException own = thrown(ArithmeticException.class, () -> {
            try (Lease lease = client.lock("a").ttl(SECOND).acquire()) {
                server.call("POST", "evict?name=a");
                lease.lost().join();
                throw new ArithmeticException("mine");
            }
        });
        check(own.getSuppressed()[0] instanceof LeaseLostException, "the loss is there, too");
    }

    private void manyWaiters() throws Exception {
        Testbed.Server server = testbed.server();
        LeaseholdClient client = server.client();
        List<Thread> waiting = new ArrayList<>();
        try (Lease lease = client.lock("a").ttl(SECOND.multipliedBy(6)).acquire()) {
            for (int count = 0; count < 120; count++) {
                Thread thread = new Thread(new FutureTask<>(client.lock("a")::acquire));
                thread.start();
                waiting.add(thread);
            }
            Testbed.eventually(() -> server.lock("a").get("queue_length").equals(120L));
            long before = server.count("PUT");
            Testbed.eventually(() -> server.count("PUT") > before + 1);
            check(lease.isHeld(), "it is held");
            waiting.forEach(Thread::interrupt);
            for (Thread thread : waiting) {
                thread.join();
            }
        }
    }

    private void refusals() throws Exception {
        Testbed.Server server = testbed.server();
        LeaseholdClient wrong = LeaseholdClient.builder(server.url).apiKey("wrong".repeat(8)).build();
        check(thrown(RefusedException.class, wrong.lock("a")::acquire).code().equals("unauthorized"), "the code");
        LeaseholdClient client = server.client();
        try (Lease lease = client.lock("a").owner("pod-1").metadata(Map.of("job", 7)).acquire()) {
            LockHeldException held = thrown(LockHeldException.class, client.lock("a").waitFor(Duration.ZERO)::acquire);
            Map<?, ?> holder = (Map<?, ?>) ((List<?>) held.problem().get("holders")).get(0);
            check(lease.isHeld() && holder.get("owner").equals("pod-1"), "it says who holds it");
            check(holder.get("metadata").equals(Map.of("job", 7L)), "and what for");
        }
    }

    private void json() throws Exception {
        String text = "{\"a\":[1,-2.5,true,false,null,{}],\"b\":\"\\\"\\\\\\u0007é\",\"c\":[]}";
        check(Json.write(Json.read(text)).equals(text), Json.write(Json.read(text)));
        check(Json.read(" { \"a\" : [ 1 , 2 ] } ").equals(Map.of("a", List.of(1L, 2L))), "blanks are skipped");
        for (String wrong : List.of("", "{", "[1", "{\"a\"}", "<html>", "{} x", "\"", "[".repeat(10_000), "nul", "1")) {
            check(Json.readObject(wrong).isEmpty(), "nothing is read from " + wrong);
        }
        check(Json.readObject("{\"a\":1e3}").equals(Map.of("a", 1000.0)), "1e3");
    }
}
