//! The meaning of a failed command: the kind of failure, and whether the command may have been executed.

use redis::RedisError;

use crate::store::{Fault, StoreError};

/// Why a command has no answer.
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// Whether the command may have been executed.
    pub(super) may_be_done: bool,
    /// Whether a retry on another connection may succeed.
    pub(super) is_worth_retrying: bool,
    pub(super) detail: String,
}

/// Part of the text of the client library's error if Redis refused to select the database.
const NO_DATABASE: &str = "switch database";
/// Part of the text of an error that a command inside a script caused.
const AMID_SCRIPT: &str = ", on @user_script";

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let detail = error.to_string();
        let is_without_database = detail.contains(NO_DATABASE);
        let failure = |fault, may_be_done, is_worth_retrying| Self {
            fault,
            may_be_done,
            is_worth_retrying,
            detail,
        };
        // The client library treats the first as a broken connection. Both happen before any command.
        if error.kind() == redis::ErrorKind::AuthenticationFailed || is_without_database {
            return failure(Fault::Auth, false, false);
        }
        if error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error() {
            return failure(Fault::Io, true, true);
        }
        // An error that names the script arose in the middle of it, so the commands before it were executed.
        let is_amid = error
            .detail()
            .is_some_and(|text| text.contains(AMID_SCRIPT));
        match error.code().unwrap_or_default() {
            // Redis checks these before the first write of a script, and never after it.
            "OOM" => failure(Fault::Full, false, false),
            "READONLY" | "NOREPLICAS" | "MISCONF" => failure(Fault::ReadOnly, false, false),
            // The error for a missing right inside a script depends on the version.
            "NOAUTH" | "WRONGPASS" | "NOPERM" => failure(Fault::Auth, is_amid, false),
            "ERR" if is_amid && detail_lacks_right(error) => failure(Fault::Auth, true, false),
            _ if is_amid => failure(Fault::Corrupt, true, false),
            "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" => failure(Fault::Busy, false, true),
            _ => failure(Fault::Corrupt, true, false),
        }
    }

    pub(super) fn timed_out() -> Self {
        let detail = "no answer in time".to_owned();
        Self {
            fault: Fault::Timeout,
            may_be_done: true,
            is_worth_retrying: false,
            detail,
        }
    }

    /// Whether the command may still reach Redis: it was sent, and got no answer.
    pub(super) fn may_arrive(&self) -> bool {
        self.may_be_done && matches!(self.fault, Fault::Io | Fault::Timeout)
    }

    /// An answer that belongs to another request, or that its script cannot have given.
    pub(super) fn corrupt(detail: &str) -> Self {
        Self {
            fault: Fault::Corrupt,
            may_be_done: true,
            is_worth_retrying: false,
            detail: detail.to_owned(),
        }
    }

    /// The problem in words, for operators who may not see Redis' own text: that names users and addresses.
    pub(super) fn explanation(&self) -> String {
        let mentions = |text| self.detail.contains(text);
        let why = match self.fault {
            Fault::Timeout => "it did not answer in time",
            Fault::Io if mentions("refused") => "the connection was refused",
            Fault::Io if mentions("lookup") => "its host name cannot be resolved",
            // The client library writes "parse error" or "Parse error", depending on where it notices.
            Fault::Io if mentions("arse error") => {
                "it does not answer like a Redis server; check host and port in the store's URL"
            }
            Fault::Io => "there is no connection, or it broke",
            Fault::Auth if mentions("NOAUTH") => {
                "it asks for a password; set redis.password or redis.password_file"
            }
            Fault::Auth if mentions(NO_DATABASE) => {
                "it has no database of the number in the store's URL, or the user may not use it"
            }
            Fault::Auth => return self.missing_right(),
            Fault::ReadOnly => "it takes no writes",
            Fault::Busy => "it is starting, or busy with a script",
            Fault::Full | Fault::Limit => "it has no room for more data",
            Fault::Refused => "it would lose leases",
            Fault::Corrupt => "its answer made no sense; the log has it",
        };
        why.to_owned()
    }

    fn missing_right(&self) -> String {
        const RIGHTS: &str = "docs/how-to/redis.md lists the rights that it needs";
        let command = self.detail.split_once("to run the '");
        match command.and_then(|(_, rest)| rest.split_once('\'')) {
            Some((command, _)) => format!("the user may not run {command}; {RIGHTS}"),
            None if self.detail.contains("authentication failed") => {
                "it refuses the user or the password".to_owned()
            }
            None => format!("the user lacks a right; {RIGHTS}"),
        }
    }

    /// The error for the caller. An earlier try may have been executed even if the last one was not.
    pub(super) fn into_error(self, may_be_done_before: bool) -> StoreError {
        match self.may_be_done || may_be_done_before {
            true => StoreError::unknown(self.fault, self.detail),
            false => StoreError::unavailable(self.fault, self.detail),
        }
    }
}

/// Whether a command in a script was forbidden, in the words of Redis 7.0; later versions return NOPERM.
fn detail_lacks_right(error: &RedisError) -> bool {
    let lacks_right = |text: &str| text.starts_with("The user executing the script can't");
    error.detail().is_some_and(lacks_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(answer: &str) -> Failure {
        let answer = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes());
        let error = answer.expect("well formed").extract_error();
        Failure::of(&error.expect_err("an error"))
    }

    #[test]
    fn an_explanation_does_not_quote_redis() {
        let wrong: redis::RedisError = (
            redis::ErrorKind::AuthenticationFailed,
            "Password authentication failed",
        )
            .into();
        let wrong = Failure::of(&wrong);
        assert_eq!(
            (wrong.fault, wrong.explanation().as_str()),
            (Fault::Auth, "it refuses the user or the password")
        );
        for (answer, explained) in [
            (
                "NOPERM User u has no permissions to run the 'config|get' command",
                "the user may not run config|get; ",
            ),
            ("NOPERM No permissions to access a key", "lacks a right; "),
            ("NOAUTH Authentication required.", "asks for a password; "),
        ] {
            let explanation = failure(answer).explanation();
            assert!(explanation.contains(explained), "{explanation}");
            assert!(!explanation.contains("User u"), "{explanation}");
        }
    }

    #[test]
    fn a_server_that_is_no_redis_is_recognised() {
        let error = redis::parse_redis_value(b"HTTP/1.1 400 Bad Request\r\n");
        let failure = Failure::of(&error.expect_err("not an answer of Redis"));
        let explanation = failure.explanation();
        assert!(
            explanation.contains("not answer like a Redis server"),
            "{explanation}"
        );
    }

    const AMID: &str = " script: 857d37fb3188c44cc298349349dd303b80cdd270, on @user_script:1.";

    #[test]
    fn a_command_refused_before_it_began_was_not_executed() {
        for (answer, fault) in [
            (
                "NOPERM User u has no permissions to run the 'evalsha' command",
                Fault::Auth,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                Fault::Busy,
            ),
            (
                "READONLY You can't write against a read only replica.",
                Fault::ReadOnly,
            ),
        ] {
            let failure = failure(answer);
            assert_eq!(
                (failure.fault, failure.may_be_done),
                (fault, false),
                "{answer}"
            );
        }
    }

    /// Redis checks a script's first write before executing it, and refuses none of the later writes.
    #[test]
    fn an_error_at_the_first_write_of_a_script_means_that_nothing_was_done() {
        for (answer, fault) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Fault::Full,
            ),
            (
                "READONLY You can't write against a read only replica.",
                Fault::ReadOnly,
            ),
        ] {
            let failure = failure(&format!("{answer}{AMID}"));
            assert_eq!(
                (failure.fault, failure.may_be_done),
                (fault, false),
                "{answer}"
            );
        }
    }

    #[test]
    fn a_script_that_failed_in_the_middle_may_be_done() {
        for (answer, fault) in [
            (
                "NOPERM User u has no permissions to run the 'set' command",
                Fault::Auth,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                Fault::Auth,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Fault::Corrupt,
            ),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Fault::Corrupt,
            ),
        ] {
            let failure = failure(&format!("{answer}{AMID}"));
            assert_eq!(
                (failure.fault, failure.may_be_done),
                (fault, true),
                "{answer}"
            );
        }
    }
}
