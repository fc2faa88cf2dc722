package leasehold.client;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** Carries out the scenarios that every client runs. */
final class Scenarios {
    private final Testbed.Server server;
    private final LeaseholdClient client;
    private final Map<String, Lease> leases = new HashMap<>();
    private final Map<String, FutureTask<Lease>> tasks = new HashMap<>();

    private Scenarios(Testbed.Server server) {
        this.server = server;
        client = server.client();
    }

    /** The steps of each scenario, by its name. */
    static Map<String, List<?>> read() throws Exception {
        Map<String, List<?>> scenarios = new HashMap<>();
        for (Object scenario : (List<?>) Json.read(Files.readString(Path.of("../scenarios.json")))) {
            Map<?, ?> members = (Map<?, ?>) scenario;
            scenarios.put((String) members.get("name"), (List<?>) members.get("steps"));
        }
        return scenarios;
    }

    static void run(Testbed testbed, List<?> steps) throws Exception {
        Scenarios driver = new Scenarios(testbed.server());
        for (Object step : steps) {
            driver.carryOut((Map<?, ?>) step);
        }
    }

    private LockRequest request(Map<?, ?> step) {
        LockRequest request = client.lock(((List<?>) step.get("names")).toArray(String[]::new));
        request.ttl(Duration.ofMillis((Long) step.get("ttl_ms"))).waitFor(Duration.ofMillis((Long) step.get("wait_ms")));
        if ("shared".equals(step.get("mode"))) {
            request.shared();
        }
        if (step.get("limit") instanceof Long limit) {
            request.semaphore(limit.intValue());
        }
        if (step.get("permits") instanceof Long permits) {
            request.permits(permits.intValue());
        }
        if (step.get("hold_count") instanceof Long count) {
            request.token(leases.get(step.get("token_of")).token()).holdCount(count.intValue());
        }
        return request;
    }

    private static <T> T expect(Map<?, ?> step, Callable<T> what) throws Exception {
        if (!(step.get("refused") instanceof Map<?, ?> refused)) {
            return what.call();
        }
        try {
            what.call();
        } catch (LeaseholdException refusal) {
            Tests.check(refused.get("status").equals((long) refusal.status()), "the status is " + refusal.status());
            Tests.check(!refused.containsKey("code") || refused.get("code").equals(refusal.code()), refusal.code());
            return null;
        }
        throw new AssertionError("it is refused");
    }

    private void carryOut(Map<?, ?> step) throws Exception {
        String kind = (String) step.keySet().iterator().next();
        Object value = step.get(kind);
        String subject = value instanceof String text ? text : "";
        Lease lease = leases.get(subject);
        switch (kind) {
            case "acquire" -> leases.put(subject, expect(step, () -> request(step).acquire()));
            case "begin" -> {
                FutureTask<Lease> task = new FutureTask<>(request(step)::acquire);
                tasks.put(subject, task);
                CompletableFuture.runAsync(task);
            }
            case "finish" -> leases.put(subject, tasks.get(subject).get());
            case "release" -> Tests.check(!Boolean.FALSE.equals(expect(step, lease::release)), "the release is confirmed");
            case "held" -> Tests.check(step.get("is").equals(lease.isHeld()), "it is held");
            case "until_lost" -> {
                LeaseLostException loss = lease.lost().get(30, TimeUnit.SECONDS);
                Tests.check(loss.code().equals(step.get("code")), loss.code());
                Tests.check(Tests.thrown(LeaseLostException.class, lease::throwIfLost) == loss, "the reason is the same");
            }
            case "fencing_token_of" -> {
                Lease earlier = leases.get(step.get("is_larger_than_of"));
                Tests.check(lease.fencingToken() > earlier.fencingToken(), "it is larger");
            }
            case "restart" -> server.call("POST", "restart");
            case "evict" -> server.call("POST", "evict?name=" + subject);
            case "lock" -> Tests.check(server.lock(subject).get("state").equals(step.get("state")), "the state of the lock");
            case "until_queued" -> Testbed.eventually(() -> server.lock(subject).get("queue_length").equals(step.get("length")));
            case "until_renewed" -> {
                for (long count = 0; count < (Long) step.get("times"); count++) {
                    Object first = server.leaseEnd(lease.names().get(0));
                    Testbed.eventually(() -> !server.leaseEnd(lease.names().get(0)).equals(first));
                }
            }
            default -> throw new AssertionError("unknown step " + kind);
        }
    }
}
