package leasehold.client;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Which service a client asks, with which key, and what it says when that key is refused. */
final class Keys {
    private static final String WRONG = "wrong-key-0123456789abcdef";
    private static final Duration SECOND = Duration.ofSeconds(1);

    private final Testbed testbed;

    Keys(Testbed testbed) {
        this.testbed = testbed;
    }

    Map<String, Tests.Test> tests() {
        Map<String, Tests.Test> tests = new LinkedHashMap<>();
        tests.put("a key file is read for each request", this::keyFile);
        tests.put("a key that cannot be used is an exception that does not show it", this::unusableKeys);
        tests.put("a refused renewal is logged once and named by the loss", this::refusedRenewal);
        tests.put("a URL needs no scheme", this::urls);
        return tests;
    }

    private void keyFile() throws Exception {
        Testbed.Server server = testbed.server();
        Path file = Files.createTempFile("leasehold", "token");
        Files.writeString(file, WRONG);
        // The environment of this process cannot be changed.
        Service.Key inFile = Service.Key.inFile(file);
        LeaseholdClient client = LeaseholdClient.builder(server.url).apiKey(inFile::current).build();
        Tests.thrown(RefusedException.class, client.lock("a")::acquire);
        Files.writeString(file, server.apiKey + "\n");
        try (Lease lease = client.lock("a").ttl(SECOND.multipliedBy(2)).acquire()) {
            // Such a file is replaced now and then, and the key of before is good meanwhile.
            Files.delete(file);
            Testbed.eventually(() -> server.count("PUT") >= 2);
            Tests.check(lease.isHeld(), "it is held");
        }
    }

    private void unusableKeys() throws Exception {
        Testbed.Server server = testbed.server();
        for (String key : List.of(WRONG + "\n\n", WRONG + " x", WRONG + "é")) {
            var builder = LeaseholdClient.builder(server.url);
            hidesTheKey(Tests.thrown(IllegalArgumentException.class, () -> builder.apiKey(key)), "visible ASCII");
            LeaseholdClient client = LeaseholdClient.builder(server.url).apiKey(() -> key).build();
            hidesTheKey(Tests.thrown(IllegalArgumentException.class, client.lock("a")::acquire), "visible ASCII");
        }
        Path file = Files.createTempFile("leasehold", "token");
        for (String text : List.of("", "\n", WRONG + "\n\n")) {
            Files.writeString(file, text);
            hidesTheKey(Tests.thrown(IllegalArgumentException.class, Service.Key.inFile(file)::current), "token");
        }
        Files.delete(file);
        hidesTheKey(Tests.thrown(IllegalArgumentException.class, Service.Key.inFile(file)::current), "cannot be read");
        Tests.check(server.requests().isEmpty(), "nothing was sent");
        var builder = LeaseholdClient.builder(server.url).apiKey(server.apiKey + "\r\n");
        Tests.check(builder.build().lock("a").acquire().release(), "one end of a line is no part of the key");
    }

    private static void hidesTheKey(Exception problem, String part) {
        Tests.check(problem.getMessage().contains(part) && !problem.getMessage().contains(WRONG), problem.getMessage());
    }

    private void refusedRenewal() throws Exception {
        AtomicReference<String> logged = new AtomicReference<>("");
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord entry) {
                logged.updateAndGet(text -> text + entry.getMessage() + "\n");
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        Logger logger = Logger.getLogger("leasehold.client");
        logger.addHandler(handler);
        Testbed.Server server = testbed.server();
        server.answer("PUT", 100, "status=401&body=%7B%22detail%22:%22the%20key%20is%20unknown%22%7D");
        Lease lease = server.client().lock("a").ttl(SECOND).acquire();
        LeaseLostException loss = lease.lost().get(30, TimeUnit.SECONDS);
        Tests.thrown(LeaseLostException.class, lease::release);
        logger.removeHandler(handler);
        Tests.check(loss.code().equals("lease_expired"), loss.code());
        Tests.check(loss.getMessage().endsWith("401: the key is unknown"), loss.getMessage());
        Tests.check(logged.get().endsWith("401: the key is unknown\n"), logged.get());
        Tests.check(logged.get().lines().count() == 1, logged.get());
    }

    private void urls() throws Exception {
        Testbed.Server server = testbed.server();
        String port = server.url.substring(server.url.lastIndexOf(':'));
        for (String url : List.of(server.url.substring("http://".length()), port)) {
            var client = LeaseholdClient.builder(url).apiKey(server.apiKey).build();
            Tests.check(client.lock("a").acquire().release(), url);
        }
        for (String url : List.of("", "ftp://a", "localhost", "http://", "http://a:x", "unix:/run/leasehold.sock")) {
            Tests.thrown(IllegalArgumentException.class, LeaseholdClient.builder(url)::build);
        }
    }
}
