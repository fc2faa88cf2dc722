//! The scripts, one for each verb, and how one is sent. `node` retries until Redis answers, and `reply` reads the answer.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

use super::constants;
use crate::domain::Attempt;

/// A script and the SHA-1 under which Redis caches it.
pub(super) struct Script {
    source: String,
    sha: String,
}

/// A request that a script executes, perhaps after several tries.
#[derive(Clone, Copy)]
pub(super) struct ScriptRequest {
    script: &'static Script,
    /// Identifies the request and its answer.
    pub(super) id: u64,
}

impl Script {
    fn new(source: &str) -> Self {
        let source = with_constants(source);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}

impl ScriptRequest {
    pub(super) fn new(script: &'static Script) -> Self {
        let id = Attempt::random().0;
        Self { script, id }
    }

    /// A request of a claim, which every try repeats.
    pub(super) fn of(script: &'static Script, attempt: Attempt) -> Self {
        let id = attempt.0;
        Self { script, id }
    }

    /// The beginning of the command, before its keys. Has the capacity of most commands, because one that grows is
    /// copied each time.
    pub(super) fn evalsha(self, keys: usize) -> Cmd {
        let mut command = Cmd::with_capacity(16 + 2 * keys, 256 + 64 * keys);
        command.arg("EVALSHA").arg(&self.script.sha).arg(keys);
        command
    }

    /// The command with its keys and its id, which scripts without a claim take first.
    pub(super) fn command(self, keys: &[&str]) -> Cmd {
        let mut command = self.evalsha(keys.len());
        command.arg(keys).arg(&self.id.to_be_bytes());
        command
    }

    /// Sends the command by the hash of its script, or with its text if Redis does not know it: after a restart, a
    /// failover or SCRIPT FLUSH. Redis has not executed a script that it does not know, and EVAL both loads and runs it.
    pub(super) async fn send(
        self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
    ) -> RedisResult<Value> {
        // The client library returns an error from Redis as a value until it is extracted.
        let answer = connection.send_packed_command(command).await?;
        match answer.extract_error() {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let with_text = self.with_text(command);
                let answer = connection.send_packed_command(&with_text).await?;
                answer.extract_error()
            }
            answer => answer,
        }
    }

    fn with_text(self, command: &Cmd) -> Cmd {
        let mut with_text = redis::cmd("EVAL");
        with_text.arg(&self.script.source);
        for argument in command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                with_text.arg(bytes);
            }
        }
        with_text
    }
}

/// The source of one part of a script: a file, or several that are included together, in the order in which they depend
/// on each other.
macro_rules! part {
    (lock) => {
        concat!(
            part!("lease"),
            part!("clock_step"),
            part!("ending"),
            part!("holders"),
            part!("state")
        )
    };
    (queue) => {
        concat!(part!("ticket"), part!("queue"))
    };
    ($file:literal) => {
        include_str!(concat!("lua/", $file, ".lua"))
    };
}

/// A script consists of its own file, the files that it includes, and those that continue it where its fast path ends.
macro_rules! scripts {
    ($($name:ident: [$($part:tt)+],)+) => {
        $(
            pub(super) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(concat!($(part!($part)),+)));
        )+

        #[cfg(test)]
        const SOURCES: &[&str] = &[$(concat!($(part!($part)),+)),+];
    };
}

scripts! {
    ACQUIRE: ["clock" "acquire" "fence" "acquire_reserved" "times" "acquire_options" lock queue "view" "acquire_held" "acquire_replay" "acquire_conflicts" "acquire_wait" "acquire_grant"],
    SUSPEND: ["clock" "times" lock queue "view" "suspend"],
    RENEW: ["clock" "renew" "times" "renew_options" lock queue "renew_general"],
    RELEASE: ["clock" "release" "times" lock queue "release_general"],
    WITHDRAW: ["clock" "times" lock queue "withdraw"],
    EVICT: ["clock" "times" lock queue "evict"],
    INSPECT: ["clock" "times" lock queue "view" "inspect"],
    SCAN: ["clock" "took" "times" lock "scan"],
    PAGE: ["clock" "took" "times" lock queue "view" "page"],
    SHIFT: ["clock" "took" "times" lock "shift"],
    SHIFT_HOLDERS: ["clock" "took" "times" lock "shift_holders"],
    RECOVERY: ["clock" "recovery"],
    ANNOUNCE: ["announce"],
}

/// A script with the values of its constants, and without its comments.
fn with_constants(source: &str) -> String {
    let mut script = String::with_capacity(source.len());
    for piece in pieces(source) {
        if piece.starts_with("--") {
            continue;
        }
        match constants::literal(piece) {
            Some(literal) => script.push_str(&literal),
            None => script.push_str(piece),
        }
    }
    script
}

/// The words, texts and comments of a script, and what is between them.
fn pieces(mut rest: &str) -> impl Iterator<Item = &str> {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = if rest.starts_with("--") {
            rest.find('\n')
        } else if first == '\'' {
            // An escaped quote would end the text too early, so the scripts have none.
            rest[1..].find('\'').map(|end| end + 2)
        } else if is_of_word(first) {
            rest.find(|letter| !is_of_word(letter))
        } else {
            let first_len = first.len_utf8();
            let ends = |letter| is_of_word(letter) || "-'".contains(letter);
            rest[first_len..].find(ends).map(|end| end + first_len)
        };
        let (piece, after) = rest.split_at(length.unwrap_or(rest.len()));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_constant_name(piece: &str) -> bool {
        let mut letters = piece.chars();
        let is_upper = |letter: char| letter.is_ascii_uppercase() || "_0123456789".contains(letter);
        letters.next().is_some_and(|it| it.is_ascii_uppercase()) && letters.all(is_upper)
    }

    fn used_constants() -> impl Iterator<Item = &'static str> {
        let pieces = SOURCES.iter().flat_map(|source| pieces(source));
        pieces.filter(|piece| is_constant_name(piece) && !["KEYS", "ARGV"].contains(piece))
    }

    #[test]
    fn the_scripts_use_exactly_the_constants_that_exist() {
        for name in used_constants() {
            assert!(constants::literal(name).is_some(), "{name} has no value");
        }
        for name in constants::names() {
            let is_used = used_constants().any(|used| used.trim_end_matches("_TEXT") == name);
            assert!(is_used, "no script uses {name}");
        }
    }

    /// Redis would find out only when the script gets there.
    #[test]
    fn a_script_calls_only_what_it_has_defined_before() {
        const OF_LUA: [&str; 12] = [
            "and", "elseif", "function", "if", "in", "ipairs", "not", "or", "pairs", "return",
            "tonumber", "unpack",
        ];
        for source in SOURCES {
            let script = with_constants(source);
            let pieces: Vec<_> = pieces(&script).collect();
            let mut defined: Vec<&str> = OF_LUA.to_vec();
            for (at, name) in pieces.iter().enumerate() {
                let before = |words| at.checked_sub(words).map_or("", |at| pieces[at]);
                if ["local", "function"].contains(&before(2)) && before(1) == " " {
                    defined.push(name);
                }
                let is_name = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
                let is_called = is_name && pieces.get(at + 1).is_some_and(|it| it.starts_with('('));
                let is_method = before(1).ends_with('.');
                assert!(
                    !is_called || is_method || defined.contains(name),
                    "{name} is called, but not defined in {}",
                    script.lines().next_back().unwrap_or_default()
                );
            }
        }
    }

    #[test]
    fn a_constant_is_replaced_by_its_value_except_in_texts_and_longer_names() {
        let source = "local a = TOMBSTONE_MS_TEXT -- of TOMBSTONE_MS\nb(BUCKETS - 1, 'BUCKETS -- ', MY_BUCKETS)\n";
        assert_eq!(
            with_constants(source),
            "local a = '60000' \nb(1024 - 1, 'BUCKETS -- ', MY_BUCKETS)\n"
        );
        for source in SOURCES {
            assert_eq!(pieces(source).collect::<String>(), *source);
            assert!(!source.contains("\\'") && !source.contains('"'));
        }
    }
}
