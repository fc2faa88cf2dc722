package leasehold.client;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * A service and one pool of connections to it. It may be used by several threads.
 *
 * <pre>{@code
 * var client = LeaseholdClient.create("http://127.0.0.1:7625");
 * try (var lease = client.lock("backup").ttl(Duration.ofSeconds(30)).acquire()) {
 *     backUp(lease.fencingToken());
 * }
 * }</pre>
 */
public final class LeaseholdClient {
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration RETRY_FOR = Duration.ofSeconds(30);

    private final HttpClient http;
    /** Without a slash at its end. */
    private final String url;
    private final Service.Key key;
    private final Duration retryFor;
    /** Says when to renew; the threads of {@link #http} do the rest. */
    private final ScheduledExecutorService timer = timer();

    private LeaseholdClient(Builder builder) {
        url = Service.url(builder.url);
        key = builder.key == null ? Service.Key.fromEnvironment() : builder.key;
        retryFor = builder.retryFor;
        // HTTP/1.1, because a connection of HTTP/2 has a bound on the requests that wait.
        http = builder.http != null
                ? builder.http
                : HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(CONNECT_TIMEOUT).build();
    }

    /**
     * A client of the service at this URL. The key is that in the file {@code LEASEHOLD_API_KEY_FILE}, which is read for
     * each request, or else that of {@code LEASEHOLD_API_KEY}, if one is set.
     */
    public static LeaseholdClient create(String url) {
        return builder(url).build();
    }

    /** A client of the service at {@code LEASEHOLD_URL}, by default {@code http://127.0.0.1:7625}. */
    public static LeaseholdClient fromEnvironment() {
        String url = System.getenv("LEASEHOLD_URL");
        return create(url == null || url.isEmpty() ? "http://127.0.0.1:7625" : url);
    }

    /** A client with other settings. */
    public static Builder builder(String url) {
        return new Builder(url);
    }

    /** A claim on a lock, or on all of several. Nothing happens until {@link LockRequest#acquire()}. */
    public LockRequest lock(String... names) {
        return new LockRequest(this, List.of(names));
    }

    /** Throws what is wrong with the key if there never was one. */
    void checkKey() {
        key.current();
    }

    Duration retryFor() {
        return retryFor;
    }

    /** Runs the task later, not for long: all leases share the thread. */
    void schedule(Runnable task, Duration delay) {
        timer.schedule(task, delay.toNanos(), TimeUnit.NANOSECONDS);
    }

    /**
     * Sends a request and reads the answer, both within the time-out of the call. The future never fails; to cancel it
     * closes the connection.
     */
    CompletableFuture<Answer> send(Claim.Call call) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + call.path()));
        request.header("Lock-Token", call.token());
        String apiKey = key.current();
        if (!apiKey.isEmpty()) {
            request.header("Authorization", "Bearer " + apiKey);
        }
        if (call.fields().isEmpty()) {
            request.method(call.method(), BodyPublishers.noBody());
        } else {
            request.header("Content-Type", "application/json");
            request.method(call.method(), BodyPublishers.ofString(Json.write(call.fields())));
        }
        CompletableFuture<HttpResponse<String>> sent;
        try {
            sent = http.sendAsync(request.build(), BodyHandlers.ofString());
        } catch (RuntimeException | Error refused) {
            // The system gives no more threads or memory, for example.
            return CompletableFuture.completedFuture(Answer.none(refused));
        }
        CompletableFuture<Answer> answer = sent.thenApply(LeaseholdClient::read)
                // The time-out of a request of the JDK does not count the body.
                .orTimeout(Math.max(call.timeout().toNanos(), 1), TimeUnit.NANOSECONDS)
                .exceptionally(error -> {
                    // Closes the connection, if there is one.
                    sent.cancel(true);
                    return Answer.none(error.getCause() == null ? error : error.getCause());
                });
        answer.whenComplete((ignored, error) -> {
            if (answer.isCancelled()) {
                sent.cancel(true);
            }
        });
        return answer;
    }

    private static Answer read(HttpResponse<String> response) {
        String seconds = response.headers().firstValue("Retry-After").orElse("");
        boolean isNumber = seconds.matches("[0-9]{1,9}");
        Duration retryAfter = isNumber ? Duration.ofSeconds(Long.parseLong(seconds)) : Duration.ZERO;
        return new Answer(response.statusCode(), retryAfter, Json.readObject(response.body()));
    }

    private static ScheduledExecutorService timer() {
        ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, task -> {
            Thread thread = new Thread(task, "leasehold-renewals");
            // Forgotten leases must not keep the program from ending.
            thread.setDaemon(true);
            return thread;
        });
        // A client without leases has no thread, and can be collected.
        timer.setKeepAliveTime(10, TimeUnit.SECONDS);
        timer.allowCoreThreadTimeOut(true);
        return timer;
    }

    /** Settings of a {@link LeaseholdClient}. */
    public static final class Builder {
        private final String url;
        private Service.Key key;
        private Duration retryFor = RETRY_FOR;
        private HttpClient http;

        private Builder(String url) {
            this.url = url;
        }

        /**
         * The key of the service.
         *
         * @throws IllegalArgumentException if it has characters that no header can have
         */
        public Builder apiKey(String apiKey) {
            key = Service.Key.constant(apiKey);
            key.current();
            return this;
        }

        /**
         * Something that returns the key of the service. It is called for each request, by several threads, and should be
         * quick. What it throws ends an acquire; while a lease is held, the key of before is used.
         */
        public Builder apiKey(Supplier<String> source) {
            key = new Service.Key(source);
            return this;
        }

        /** How long an acquire repeats requests that get no useful answer, 30 s by default. */
        public Builder retryFor(Duration duration) {
            retryFor = duration;
            return this;
        }

        /** Another HTTP client, for example with other certificates. */
        public Builder http(HttpClient client) {
            http = client;
            return this;
        }

        /** The client. */
        public LeaseholdClient build() {
            return new LeaseholdClient(this);
        }
    }
}
