package leasehold.client;

import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.Supplier;

/** Where the service is, and with which key. */
final class Service {
    private Service() {}

    /** A URL as the commands read it: without a scheme it is http, and without a host this machine. */
    static String url(String text) {
        if (text.startsWith("unix:")) {
            throw new IllegalArgumentException("\"" + text + "\" is a Unix socket, which java.net.http cannot connect to");
        }
        String complete = text;
        if (text.startsWith(":")) {
            complete = "http://127.0.0.1" + text;
        } else if (text.matches("[^:]+:[0-9].*")) {
            complete = "http://" + text;
        }
        complete = complete.replaceAll("/+$", "");
        if (complete.matches("https?://.*")) {
            try {
                if (new URI(complete + "/locks").getHost() != null) {
                    return complete;
                }
            } catch (java.net.URISyntaxException wrong) {
                // What follows says more.
            }
        }
        throw new IllegalArgumentException("\"" + text + "\" is no URL of a service; write one like http://127.0.0.1:7625");
    }

    /** The key, which is read again for each request. */
    static final class Key {
        private final Supplier<String> source;
        /** Empty for a service without keys, and null before the first. */
        private volatile String last;

        Key(Supplier<String> source) {
            this.source = source;
        }

        /** The key in the file {@code LEASEHOLD_API_KEY_FILE}, or else {@code LEASEHOLD_API_KEY}. */
        static Key fromEnvironment() {
            String file = System.getenv("LEASEHOLD_API_KEY_FILE");
            return file == null || file.isEmpty() ? constant(System.getenv("LEASEHOLD_API_KEY")) : inFile(Path.of(file));
        }

        static Key inFile(Path file) {
            return new Key(() -> read(file));
        }

        static Key constant(String key) {
            String constant = key == null ? "" : key;
            return new Key(() -> constant);
        }

        /** The key of now. While it cannot be had it is the one of before, so that no lease is lost meanwhile. */
        String current() {
            try {
                last = sendable(source.get(), "the API key");
            } catch (RuntimeException unusable) {
                if (last == null) {
                    throw unusable;
                }
            }
            return last;
        }

        private static String read(Path file) {
            try {
                String key = sendable(new String(Files.readAllBytes(file), StandardCharsets.UTF_8), file + ": the API key");
                if (key.isEmpty()) {
                    throw new IllegalArgumentException(file + ": the API key is empty");
                }
                return key;
            } catch (IOException unreadable) {
                throw new IllegalArgumentException(file + ": the API key cannot be read", unreadable);
            }
        }

        /** Without the end of its line. The exception does not show the key, because exceptions are logged. */
        private static String sendable(String text, String what) {
            String key = text.replaceFirst("\\r?\\n\\z", "");
            if (!key.matches("[!-~]*")) {
                throw new IllegalArgumentException(
                        what + " has a character that is not allowed in a header; use visible ASCII without spaces");
            }
            return key;
        }
    }
}
