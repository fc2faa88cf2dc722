package leasehold.client;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * One attempt to hold a lock or several: its requests. Its token never changes, so each of its requests may be repeated.
 *
 * @param fields those of the acquire, without {@code wait}
 */
record Claim(List<String> names, String token, int holdCount, Map<String, Object> fields) {
    private static final Duration ANSWER_TIMEOUT = Duration.ofSeconds(10);
    private static final Duration RELEASE_TIMEOUT = Duration.ofSeconds(2);
    private static final Pattern VALID_NAME =
            Pattern.compile("(?!.*(^|/)\\.{0,2}(/|$))[A-Za-z0-9._~:@+,=/-]+");

    /** A request to the service. */
    record Call(String method, String path, String token, Map<String, Object> fields, Duration timeout) {}

    Call acquire(Duration wait) {
        Map<String, Object> sent = new HashMap<>(fields);
        if (wait.toMillis() > 0) {
            sent.put("wait", inMillis(wait));
        }
        return call("POST", sent, wait.plus(ANSWER_TIMEOUT));
    }

    Call renew(Duration timeout) {
        return call("PUT", new HashMap<>(), timeout);
    }

    /** Releases the lock or leaves the queue; a re-entered lock is stepped back. */
    Call release() {
        Map<String, Object> sent = new HashMap<>();
        if (holdCount > 1) {
            sent.put("hold_count", holdCount - 1);
        }
        return call("DELETE", sent, RELEASE_TIMEOUT);
    }

    private Call call(String method, Map<String, Object> sent, Duration timeout) {
        // In a path, "a/../b" would become another name. The service refuses it, if it gets to see it.
        if (names.size() == 1 && VALID_NAME.matcher(names.get(0)).matches()) {
            return new Call(method, "/locks/" + names.get(0), token, sent, timeout);
        }
        sent.put("names", names);
        return new Call(method, "/locks", token, sent, timeout);
    }

    /** A duration as the service reads it. */
    static String inMillis(Duration duration) {
        return Math.max(duration.toMillis(), 1) + "ms";
    }
}
