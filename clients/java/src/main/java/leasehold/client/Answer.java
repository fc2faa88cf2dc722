package leasehold.client;

import java.time.Duration;
import java.util.Map;

/** What came back. A status of 0 means that nothing did, and the body has the reason as {@code detail}. */
record Answer(int status, Duration retryAfter, Map<String, Object> body) {
    static Answer none(Throwable reason) {
        return new Answer(0, Duration.ZERO, Map.of("detail", "no answer: " + reason));
    }

    String code() {
        return body.get("code") instanceof String code ? code : "";
    }

    String detail() {
        return body.get("detail") instanceof String detail ? detail : "the service answered " + status;
    }

    /** Whether the same request may succeed later although nothing is wrong with it. */
    boolean isTemporary() {
        return status == 0 || status == 408 || status == 429 || status >= 500;
    }

    /** Whether the request is wrong or not allowed. */
    boolean isRefusal() {
        return status / 100 == 4 && !isTemporary();
    }
}
