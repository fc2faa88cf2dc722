package leasehold.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** The control of clients/testbed.py, which starts servers, and a proxy in front of each that fails on request. */
final class Testbed implements AutoCloseable {
    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final Process process;
    private final String url;

    Testbed() throws IOException {
        process = new ProcessBuilder("python3", "../testbed.py").redirectError(ProcessBuilder.Redirect.INHERIT).start();
        url = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
    }

    @Override
    public void close() throws IOException {
        process.getOutputStream().close();
        process.onExit().join();
    }

    Object call(String method, String path) throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + path));
        var response = http.send(request.method(method, HttpRequest.BodyPublishers.noBody()).build(), BodyHandlers.ofString());
        if (response.statusCode() != 200) {
            throw new AssertionError(response.body());
        }
        return Json.read(response.body());
    }

    void pauseThisProcess(int seconds) throws IOException, InterruptedException {
        call("POST", "/pause?pid=" + ProcessHandle.current().pid() + "&seconds=" + seconds);
    }

    Server server() throws IOException, InterruptedException {
        return new Server((Map<?, ?>) call("POST", "/servers"));
    }

    final class Server {
        private final long id;
        final String url;
        final String apiKey;

        Server(Map<?, ?> server) {
            id = (Long) server.get("id");
            url = (String) server.get("url");
            apiKey = (String) server.get("api_key");
        }

        LeaseholdClient client() {
            return client(Duration.ofSeconds(30));
        }

        LeaseholdClient client(Duration retryFor) {
            return LeaseholdClient.builder(url).apiKey(apiKey).retryFor(retryFor).build();
        }

        Object call(String method, String action) throws IOException, InterruptedException {
            return Testbed.this.call(method, "/servers/" + id + "/" + action);
        }

        void fault(String kind, String method, int times) throws IOException, InterruptedException {
            call("POST", "fault?kind=" + kind + "&method=" + method + "&times=" + times);
        }

        /** The next requests with this method get this answer; the status, header and body are encoded for a URL. */
        void answer(String method, int times, String answer) throws IOException, InterruptedException {
            call("POST", "fault?kind=answer&method=" + method + "&times=" + times + "&" + answer);
        }

        Map<?, ?> lock(String name) throws IOException, InterruptedException {
            return (Map<?, ?>) call("GET", "lock?name=" + name);
        }

        Object leaseEnd(String name) throws IOException, InterruptedException {
            List<?> holders = (List<?>) lock(name).get("holders");
            return ((Map<?, ?>) holders.get(0)).get("expires_at");
        }

        /** What the proxy received for the lock {@code a}. */
        List<Map<?, ?>> requests() throws IOException, InterruptedException {
            return ((List<?>) call("GET", "requests?name=a")).stream().<Map<?, ?>>map(request -> (Map<?, ?>) request).toList();
        }

        long count(String method) throws IOException, InterruptedException {
            return requests().stream().filter(request -> request.get("method").equals(method)).count();
        }
    }

    static void eventually(Callable<Boolean> what) throws Exception {
        Moment begun = Moment.now();
        while (!what.call()) {
            if (begun.elapsed().toSeconds() >= 30) {
                throw new AssertionError("it never happened");
            }
            Thread.sleep(20);
        }
    }
}
