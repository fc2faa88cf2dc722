package leasehold.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON, which the JDK lacks: objects are maps, arrays are lists, numbers are {@code Long} if they are whole and {@code
 * Double} if not.
 */
final class Json {
    /** Far more than any answer has, and few enough for the stack. */
    private static final int DEPTH_MAX = 200;

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /** The members of the object, none if the text is something else: it comes from a proxy then. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> readObject(String text) {
        try {
            return read(text) instanceof Map<?, ?> members ? (Map<String, Object>) members : Map.of();
        } catch (IllegalArgumentException | IndexOutOfBoundsException error) {
            return Map.of();
        }
    }

    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.skipBlanks();
        if (json.at < text.length()) {
            throw new IllegalArgumentException("something follows the value");
        }
        return value;
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> members) {
            char before = '{';
            for (Map.Entry<?, ?> member : members.entrySet()) {
                out.append(before);
                writeText(String.valueOf(member.getKey()), out);
                out.append(':');
                write(member.getValue(), out);
                before = ',';
            }
            out.append(members.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> elements) {
            char before = '[';
            for (Object element : elements) {
                out.append(before);
                write(element, out);
                before = ',';
            }
            out.append(before == '[' ? "[]" : "]");
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            writeText(value.toString(), out);
        }
    }

    private static void writeText(String text, StringBuilder out) {
        out.append('"');
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                out.append('\\').append(letter);
            } else if (letter < ' ') {
                out.append(String.format("\\u%04x", (int) letter));
            } else {
                out.append(letter);
            }
        }
        out.append('"');
    }

    private Object value() {
        skipBlanks();
        if (++depth > DEPTH_MAX) {
            throw new IllegalArgumentException("too deep");
        }
        Object value = switch (text.charAt(at)) {
            case '{' -> object();
            case '[' -> array();
            case '"' -> string();
            case 't' -> word("true", Boolean.TRUE);
            case 'f' -> word("false", Boolean.FALSE);
            case 'n' -> word("null", null);
            default -> number();
        };
        depth--;
        return value;
    }

    private Map<String, Object> object() {
        Map<String, Object> members = new LinkedHashMap<>();
        at++;
        while (!isNext('}')) {
            if (!members.isEmpty()) {
                expect(',');
            }
            skipBlanks();
            String name = string();
            expect(':');
            members.put(name, value());
        }
        return members;
    }

    private List<Object> array() {
        List<Object> elements = new ArrayList<>();
        at++;
        while (!isNext(']')) {
            if (!elements.isEmpty()) {
                expect(',');
            }
            elements.add(value());
        }
        return elements;
    }

    private String string() {
        expect('"');
        StringBuilder out = new StringBuilder();
        while (true) {
            char letter = text.charAt(at++);
            if (letter == '"') {
                return out.toString();
            }
            if (letter != '\\') {
                out.append(letter);
                continue;
            }
            char escaped = text.charAt(at++);
            switch (escaped) {
                case 'b' -> out.append('\b');
                case 'f' -> out.append('\f');
                case 'n' -> out.append('\n');
                case 'r' -> out.append('\r');
                case 't' -> out.append('\t');
                case 'u' -> {
                    out.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                }
                default -> out.append(escaped);
            }
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw new IllegalArgumentException("unknown word");
        }
        at += word.length();
        return value;
    }

    private Object number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String digits = text.substring(start, at);
        try {
            return Long.valueOf(digits);
        } catch (NumberFormatException notWhole) {
            return Double.valueOf(digits);
        }
    }

    /** Skips the letter if it is the next one. */
    private boolean isNext(char letter) {
        skipBlanks();
        boolean isNext = text.charAt(at) == letter;
        at += isNext ? 1 : 0;
        return isNext;
    }

    private void expect(char letter) {
        if (!isNext(letter)) {
            throw new IllegalArgumentException("no " + letter);
        }
    }

    private void skipBlanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }
}
