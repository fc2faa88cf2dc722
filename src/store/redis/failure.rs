//! The meaning of a failed command: the kind of failure, and whether the command may have been executed.

use redis::RedisError;

use super::constants::CLOCK_TOO_LATE;
use super::recovery::members;
use super::redirection::{self, Redirection};
use super::scripts;
use super::transport::Endpoint;
use crate::store::{Fault, StoreError};

/// Nothing listens at the address of a Redis.
pub(crate) const CONNECTION_REFUSED: &str = "the connection was refused";

/// Part of what Redis says to a client too many. A node of a cluster counts the connections of other nodes, too.
pub(super) const NO_ROOM_FOR_CLIENTS: &str = "max number of clients";
/// What that is to an operator.
pub(super) const TOO_MANY_CLIENTS: &str = "it has as many clients as its maxclients admits";

/// How a failure begins that is about slots without a primary.
pub(super) const NO_PRIMARY: &str = "no primary has";
/// What a node says of such a slot while it serves others.
const SLOT_NOT_SERVED: &str = "Hash slot not served";

/// Why a command has no answer.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// Whether the command may have been executed.
    pub(super) may_be_done: bool,
    /// Whether a retry on another connection may succeed.
    pub(super) is_worth_retrying: bool,
    pub(super) detail: String,
    /// Where to send the command instead, if the slot of its keys has moved.
    pub(super) redirection: Option<Redirection>,
    /// What exactly is wrong, where the kind does not say it; for operators.
    reason: Option<&'static str>,
}

/// Whether the command of a failure may have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Execution {
    /// It was refused, or not sent.
    NotDone,
    /// It was sent.
    MayBeDone,
}

/// Part of the text of the client library's error if Redis refused to select the database.
const NO_DATABASE: &str = "switch database";
/// Part of the text of an error that a command inside a script caused. Valkey 9.1 puts no hash of the script before it.
const AMID_SCRIPT: &str = " on @user_script:";
/// How Redis 6.2 begins it instead. The error of the command itself follows, after the place in the script.
const AMID_SCRIPT_6: &str = "Error running script (call to f_";

impl Failure {
    /// A failure that would occur again at once.
    pub(super) fn new(fault: Fault, execution: Execution, detail: impl Into<String>) -> Self {
        Self {
            fault,
            may_be_done: execution == Execution::MayBeDone,
            is_worth_retrying: false,
            detail: detail.into(),
            redirection: None,
            reason: None,
        }
    }

    /// The failure of the first command of a pipeline that failed: the error of the pipeline itself has few codes, and no
    /// text.
    pub(super) fn of_first(error: &RedisError) -> Self {
        let in_pipeline = error.clone().into_server_errors();
        let first = in_pipeline.as_deref().and_then(<[_]>::first);
        match first {
            Some((_, first)) => Self::of(&first.clone().into()),
            None => Self::of(error),
        }
    }

    pub(super) fn of(error: &RedisError) -> Self {
        use Execution::{MayBeDone, NotDone};
        let failure = |fault, execution| Self::new(fault, execution, error.to_string());
        let passing = |fault, execution| Self {
            is_worth_retrying: true,
            ..failure(fault, execution)
        };
        // Redis says so to whoever connects, and closes the connection.
        if error.to_string().contains(NO_ROOM_FOR_CLIENTS) {
            return passing(Fault::Io, NotDone).because(TOO_MANY_CLIENTS);
        }
        // The client library treats the first as a broken connection. Both happen before any command.
        if error.kind() == redis::ErrorKind::AuthenticationFailed {
            return failure(Fault::Auth, NotDone);
        }
        if error.to_string().contains(NO_DATABASE) {
            return failure(Fault::Database, NotDone);
        }
        if error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error() {
            let fault = if error.kind() == redis::ErrorKind::Parse {
                Fault::Protocol
            } else if error.is_timeout() {
                Fault::Timeout
            } else {
                Fault::Io
            };
            return passing(fault, MayBeDone);
        }
        let (mut code, mut detail) = (
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default(),
        );
        // An error that names the script arose in the middle of it, so the commands before it were executed.
        let mut is_amid = detail.contains(AMID_SCRIPT);
        if let Some(inner) = error_in_script_6(detail) {
            (code, detail) = inner;
            is_amid = true;
        }
        let execution = if is_amid { MayBeDone } else { NotDone };
        match code {
            // Redis checks these before the first write of a script, and never after it.
            "OOM" => failure(Fault::Full, NotDone),
            "READONLY" => failure(Fault::Replica, NotDone),
            "NOREPLICAS" | "MISCONF" => failure(Fault::ReadOnly, NotDone),
            "NOAUTH" | "WRONGPASS" => failure(Fault::Auth, execution),
            "NOPERM" => failure(Fault::Permission, execution),
            // `read_string` in `lua/lease.lua`, before its script has written anything.
            "TRYAGAIN" if is_amid && redirection::is_not_local(detail) => {
                passing(Fault::Moving, NotDone)
            }
            "TRYAGAIN" if is_amid && lacks_right(after_code(detail)) => {
                failure(Fault::Permission, NotDone)
            }
            _ if is_amid && redirection::is_not_local(detail) => passing(Fault::Moving, MayBeDone),
            _ if is_amid && lacks_right(detail) => failure(Fault::Permission, execution),
            _ if is_amid => failure(Fault::Corrupt, execution),
            "CLUSTERDOWN" => passing(Fault::ClusterDown, NotDone),
            "MOVED" => Self {
                redirection: Some(Redirection::Moved),
                ..passing(Fault::Cluster, NotDone)
            },
            "ASK" => Self {
                redirection: Redirection::ask(detail),
                ..passing(Fault::Moving, NotDone)
            },
            "TRYAGAIN" => passing(Fault::Moving, NotDone),
            CLOCK_TOO_LATE => failure(Fault::Corrupt, NotDone)
                .because("its clock shows a time after the year 2255; set it"),
            "CROSSSLOT" => failure(Fault::Cluster, NotDone),
            "LOADING" | "BUSY" | "MASTERDOWN" => passing(Fault::Busy, NotDone),
            _ => failure(Fault::Corrupt, MayBeDone),
        }
    }

    /// The same failure with a reason of its own.
    pub(super) fn because(self, reason: &'static str) -> Self {
        Self {
            reason: Some(reason),
            ..self
        }
    }

    /// The same failure, where another try may succeed.
    pub(super) fn passing(self) -> Self {
        Self {
            is_worth_retrying: true,
            ..self
        }
    }

    /// Whether a particular reason is known for both, and is the same.
    pub(super) fn has_reason_of(&self, other: &Self) -> bool {
        self.reason.is_some() && self.reason == other.reason
    }

    pub(super) fn timed_out() -> Self {
        Self::new(Fault::Timeout, Execution::MayBeDone, "no answer in time")
    }

    /// The same failure, of a connection over which nothing was sent yet.
    pub(super) fn before_any_command(self) -> Self {
        Self {
            may_be_done: false,
            ..self
        }
    }

    /// Whether it lasts until somebody changes the configuration, of Redis or of Leasehold.
    pub(super) fn is_lasting(&self) -> bool {
        self.fault.is_lasting() && self.redirection.is_none()
    }

    /// Whether it shows that Redis serves no such request at the moment. One without memory, or that takes no writes, refuses
    /// what other processes need to keep their places, too.
    pub(super) fn is_outage(&self) -> bool {
        use Fault::{Busy, ClusterDown, Full, Io, ReadOnly, Timeout};
        [Io, Timeout, Busy, ClusterDown, Full, ReadOnly].contains(&self.fault)
    }

    /// Whether the command may still reach Redis: it was sent, and got no answer.
    pub(super) fn may_arrive(&self) -> bool {
        self.may_be_done && matches!(self.fault, Fault::Io | Fault::Protocol | Fault::Timeout)
    }

    /// Whether another connection may do better than the one that it came over, which may be broken or lead to a Redis that is
    /// no primary any more. Another one has the same rights; and while a slot moves, none could be verified.
    pub(super) fn casts_doubt_on_connection(&self) -> bool {
        let is_answer = self.fault == Fault::Permission || self.is_moving();
        let is_of_role = matches!(self.fault, Fault::Replica | Fault::ReadOnly);
        self.may_be_done && !is_answer || is_of_role
    }

    /// An answer that belongs to another request, or that its script cannot have given.
    pub(super) fn corrupt(detail: &str) -> Self {
        Self::new(Fault::Corrupt, Execution::MayBeDone, detail)
    }

    /// The problem in words, for operators who may not see Redis' own text: that names users and addresses.
    pub(super) fn explanation(&self) -> String {
        let mentions = |text: &str| self.detail.contains(text);
        if let Some(reason) = self.reason {
            return reason.to_owned();
        }
        let of_quorum = [members::EMPTY, members::SAME];
        if let Some(reason) = of_quorum.into_iter().find(|it| mentions(it)) {
            return reason.to_owned();
        }
        let why = match self.fault {
            Fault::Timeout => "it did not answer in time",
            Fault::Io if mentions("refused") => CONNECTION_REFUSED,
            Fault::Io if mentions("lookup") => "its host name cannot be resolved",
            Fault::Io => "there is no connection, or it broke",
            Fault::Auth if mentions("NOAUTH") => {
                "it asks for a password; write it to a file and set redis.password_file (--redis-password-file, \
                 LEASEHOLD_REDIS_PASSWORD_FILE), or set LEASEHOLD_REDIS_PASSWORD"
            }
            Fault::Auth => "it refuses the user or the password",
            Fault::Permission => return self.missing_right(),
            Fault::Database => {
                "it has no database of the number in the store's URL, or the user may not use it"
            }
            Fault::ClusterDown if mentions(NO_PRIMARY) || mentions(SLOT_NOT_SERVED) => {
                "no primary of the cluster has the slots of some locks"
            }
            Fault::ClusterDown => {
                "the cluster is down: it has lost most of its primaries, or some slots have none, which stops all of it \
                 unless cluster-require-full-coverage is no"
            }
            Fault::Cluster => {
                "it is a node of a Redis Cluster without the slots of some locks; write redis+cluster:// in \
                 LEASEHOLD_STORE for a cluster"
            }
            Fault::Tls => {
                return format!("its certificates cannot be used: {}", self.detail);
            }
            Fault::Protocol => {
                "it does not answer like a Redis server; check host and port in the store's URL"
            }
            Fault::Replica => "it is a replica, which takes no writes",
            Fault::ReadOnly => "it takes no writes: it lacks replicas, or cannot write to its disk",
            Fault::Unreplicated => return self.detail.clone(),
            Fault::Moving => {
                return format!(
                    "a slot is on its way to another node, and Redis refuses most requests for its locks until then; {}",
                    redirection::HOW_TO_END
                );
            }
            Fault::Busy => "it is starting, or busy with a script",
            Fault::Crowded => "its database has too many keys",
            Fault::Full | Fault::Limit => "it has no room for more data",
            Fault::Refused => "it would lose leases",
            Fault::Corrupt => "its answer is invalid; the log has it",
        };
        why.to_owned()
    }

    fn missing_right(&self) -> String {
        const RIGHTS: &str = "docs/how-to/redis.md lists the rights that it needs";
        let command = self.detail.split_once("to run the '");
        let named = command.and_then(|(_, rest)| rest.split_once('\''));
        // Redis before 7.2 names only the line of a script.
        let in_script = || Some(scripts::refused_command(&self.detail)?.to_lowercase());
        match named
            .map(|(command, _)| command.to_owned())
            .or_else(in_script)
        {
            Some(command) => format!("the user may not run {command}; {RIGHTS}"),
            None => format!("the user lacks a right; {RIGHTS}"),
        }
    }

    /// The same failure, at this node of a cluster if it is one.
    pub(super) fn at(self, node: Option<Endpoint>) -> Self {
        let Some((host, port)) = node else {
            return self;
        };
        Self {
            detail: format!("{host}:{port}: {}", self.detail),
            ..self
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

/// The error of an operation in words, for the operator of the process, who may see Redis' own text, too.
pub(crate) fn explained(error: &StoreError) -> String {
    let failure = Failure::new(error.fault(), Execution::NotDone, error.detail());
    match failure.explanation() {
        explanation if explanation == failure.detail => explanation,
        explanation => format!("{explanation} ({})", failure.detail),
    }
}

/// Whether a command in a script was forbidden. There is no error code for it, only words: those of Redis before 7.2, and
/// those of later versions and of Valkey.
fn lacks_right(detail: &str) -> bool {
    let beginnings = [
        "The user executing the script can't",
        "ACL failure in script",
    ];
    beginnings.iter().any(|words| detail.starts_with(words))
}

/// The text of an error that a script has passed on with a code of its own.
fn after_code(detail: &str) -> &str {
    detail.split_once(' ').map_or(detail, |(_, text)| text)
}

/// The code of the error of a command in a script, and its text, in the words of Redis 6.2. Few errors have a code there.
fn error_in_script_6(detail: &str) -> Option<(&str, &str)> {
    let (_, at) = detail
        .strip_prefix(AMID_SCRIPT_6)?
        .split_once("): @user_script:")?;
    let (_, text) = at.split_once(": ")?;
    // It may name the line twice, and begins as an answer of Redis then.
    let text = match text.strip_prefix("@user_script: ") {
        Some(again) => again.split_once(": ")?.1,
        None => text,
    };
    let coded = text.strip_prefix('-').and_then(|it| it.split_once(' '));
    Some(coded.unwrap_or(("ERR", text)))
}

#[cfg(test)]
mod tests;
