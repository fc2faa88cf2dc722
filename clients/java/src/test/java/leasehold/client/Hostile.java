package leasehold.client;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;

/** What the client does when the answers are garbage, and when its caller gives up at a bad moment. */
final class Hostile {
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static final String GRANT =
            "{\"name\":\"a\",\"fencing_token\":7,\"ttl_ms\":60000,\"waited_ms\":0,\"expires_in_ms\":60000}";
    private static final Map<String, String> GARBAGE = Map.of(
            "an hour", "status=429&header=Retry-After:3600",
            "a century", "status=503&header=Retry-After:99999999999999999999",
            "no lease", body("{\"locks\":[null]}"),
            "no locks", body("{\"locks\":[]}"),
            "a huge number", body(GRANT.replace("in_ms\":60000", "in_ms\":9000000000000000000")),
            "a huge TTL", body(GRANT.replace("ttl_ms\":60000", "ttl_ms\":9000000000000000000")),
            "another lock", body(GRANT.replace("\"a\"", "\"b\"")),
            "no duration", body(GRANT.replace("ttl_ms\":60000", "ttl_ms\":0")),
            "a redirect", "status=307&header=Location:/locks/b");

    private final Testbed testbed;

    Hostile(Testbed testbed) {
        this.testbed = testbed;
    }

    Map<String, Tests.Test> tests() {
        Map<String, Tests.Test> tests = new LinkedHashMap<>();
        GARBAGE.forEach((name, answer) -> {
            tests.put("garbage does not stop the renewals: " + name, () -> renewals(answer));
        });
        tests.put("a grant that is none is refused and withdrawn", this::refused);
        tests.put("answers that come at once are not asked for without a pause", this::paused);
        tests.put("an answer that drips is given up", this::drips);
        tests.put("a release that was not confirmed stays so", this::unconfirmed);
        tests.put("an interrupted acquire closes its connection", this::interrupted);
        return tests;
    }

    private static String body(String json) {
        return "status=200&body=" + URLEncoder.encode(json, StandardCharsets.UTF_8);
    }

    private void renewals(String answer) throws Exception {
        Testbed.Server server = testbed.server();
        server.answer("PUT", 1, answer);
        try (Lease lease = server.client().lock("a").ttl(SECOND.multipliedBy(3)).acquire()) {
            Testbed.eventually(() -> server.count("PUT") >= 2);
            Tests.check(lease.isHeld() && lease.fencingToken() > 7, "it is held");
        }
    }

    private void refused() throws Exception {
        for (String name : List.of("no lease", "a huge number", "another lock", "no duration")) {
            Testbed.Server server = testbed.server();
            server.answer("POST", 1, GARBAGE.get(name));
            Tests.thrown(RefusedException.class, server.client().lock("a")::acquire);
            Tests.check(server.count("DELETE") == 1, "it is withdrawn: " + name);
        }
    }

    private void paused() throws Exception {
        for (String answer : List.of("status=423", body(GRANT.replace("in_ms\":60000", "in_ms\":0")))) {
            Testbed.Server server = testbed.server();
            server.answer("POST", 100_000, answer);
            LockRequest request = server.client(SECOND).lock("a").waitFor(SECOND);
            Tests.thrown(LeaseholdException.class, request::acquire);
            Tests.check(server.count("POST") <= 12, server.count("POST") + " requests are few");
        }
    }

    private void drips() throws Exception {
        Testbed.Server server = testbed.server();
        server.fault("drip", "PUT", 1);
        server.fault("drip", "DELETE", 1);
        Lease lease = server.client().lock("a").ttl(SECOND.multipliedBy(3)).acquire();
        Testbed.eventually(() -> server.count("PUT") >= 2);
        Tests.check(lease.isHeld() && lease.release(), "it is held, and then released");
    }

    private void unconfirmed() throws Exception {
        Testbed.Server server = testbed.server();
        server.fault("refuse", "DELETE", 3);
        Lease lease = server.client().lock("a").acquire();
        Tests.check(!lease.release() && !lease.release(), "neither is confirmed");
        Tests.check(server.count("DELETE") == 3, "the second sends nothing");
    }

    private void interrupted() throws Exception {
        Testbed.Server server = testbed.server();
        server.fault("hang", "POST", 1);
        FutureTask<Lease> waiting = new FutureTask<>(server.client().lock("a")::acquire);
        Thread thread = new Thread(waiting);
        thread.start();
        Testbed.eventually(() -> server.count("POST") == 1);
        thread.interrupt();
        Tests.thrown(ExecutionException.class, waiting::get);
        // In the hands of the client; its time-out would do it after 35 s.
        Testbed.eventually(() -> server.requests().get(0).get("given_up").equals(true));
    }
}
