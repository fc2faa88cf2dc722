package leasehold.client;

import java.util.Map;

/** The base of all errors of this package. */
public class LeaseholdException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String code;
    private final int status;
    private final transient Map<String, Object> problem;

    LeaseholdException(String message, String code, int status, Map<String, Object> problem) {
        super(message);
        this.code = code;
        this.status = status;
        this.problem = problem;
    }

    LeaseholdException(Answer answer) {
        this(answer.detail(), answer.code(), answer.status(), answer.body());
    }

    /** What happened, for programs, such as {@code lock_held}; never renamed. Empty if the service did not say. */
    public String code() {
        return code;
    }

    /** The HTTP status, 0 if there was no answer. */
    public int status() {
        return status;
    }

    /** All members of the service's answer, such as {@code holders} of a lock that is held. */
    public Map<String, Object> problem() {
        return problem == null ? Map.of() : problem;
    }
}
