package leasehold.client;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * What an answer says about a lease. Of several locks, the one that ends first counts.
 *
 * @param validFor how long the lease lasts, counted from before the request was sent
 */
record Grant(Map<String, Long> fencingTokens, Duration ttl, Duration validFor) {
    /** Longer than any lease: 115 days. */
    private static final long LEASE_MAX_MS = 10_000_000_000L;

    /** {@code null} if the body is not a grant of these locks. */
    static Grant read(Map<String, Object> body, List<String> names) {
        List<?> grants = body.get("locks") instanceof List<?> locks ? locks : List.of(body);
        Map<String, Long> tokens = new TreeMap<>();
        Duration ttl = null;
        Duration validFor = null;
        for (Object grant : grants) {
            if (!(grant instanceof Map<?, ?> members
                    && members.get("name") instanceof String name
                    && members.get("fencing_token") instanceof Long token
                    && members.get("ttl_ms") instanceof Long ttlMs
                    && members.get("waited_ms") instanceof Long waitedMs
                    && members.get("expires_in_ms") instanceof Long expiresInMs
                    && ttlMs > 0
                    && isDuration(ttlMs)
                    && isDuration(waitedMs)
                    && isDuration(expiresInMs))) {
                return null;
            }
            tokens.put(name, token);
            // The lease lasts for `expires_in_ms` from the answer, which came no sooner than after the wait.
            Duration lasts = Duration.ofMillis(waitedMs + expiresInMs);
            if (validFor == null || lasts.compareTo(validFor) < 0) {
                validFor = lasts;
                ttl = Duration.ofMillis(ttlMs);
            }
        }
        boolean isOurs = validFor != null && tokens.keySet().containsAll(names);
        return isOurs ? new Grant(Map.copyOf(tokens), ttl, validFor) : null;
    }

    private static boolean isDuration(long millis) {
        return millis >= 0 && millis <= LEASE_MAX_MS;
    }
}
