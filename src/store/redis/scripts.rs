//! The scripts, one for each verb, assembled from files; and their commands. `node` sends them until Redis answers, and
//! `reply` reads the answer.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

use super::constants;
use crate::domain::Attempt;

/// A script and the SHA-1 under which Redis caches it.
pub(super) struct Script {
    name: &'static str,
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
    fn new(name: &'static str) -> Self {
        let source = with_constants(&assembled(name));
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { name, source, sha }
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

    /// The name of the script.
    pub(super) fn name(self) -> &'static str {
        self.script.name
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

    /// The answer to the command, which is sent again with the text of its script if Redis does not know the hash: after a
    /// restart, a failover or SCRIPT FLUSH. Redis has not executed a script that it does not know, and EVAL both loads and
    /// runs it.
    pub(super) async fn with_text_if_unknown(
        self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
        answer: RedisResult<Value>,
    ) -> RedisResult<Value> {
        // The client library returns an error from Redis as a value until it is extracted.
        match answer.and_then(Value::extract_error) {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let with_text = self.with_text(command);
                let answer = connection.send_packed_command(&with_text).await?;
                answer.extract_error()
            }
            answer => answer,
        }
    }

    /// Sends the command to a node of a cluster that does not have the slot of the keys yet, but the keys.
    pub(super) async fn send_asking(
        self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
    ) -> RedisResult<Value> {
        let mut asking = redis::pipe();
        asking.cmd("ASKING").ignore();
        // The node may not know the script yet, and each command needs a permission of its own.
        asking.add_command(self.with_text(command));
        let (answer,) = asking.query_async(connection).await?;
        Ok(answer)
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

/// The beginning of a line that stands for other files, by their names. A script has each of them once, where it is
/// first included. A file includes what it uses.
const INCLUDE: &str = "-- include: ";

macro_rules! files {
    ($($name:literal)+) => {
        /// All files, by their names.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("lua/", $name, ".lua")))),+];
    };
}

files! {
    "acquire" "acquire_conflicts" "acquire_grant" "acquire_held" "acquire_options" "acquire_wait"
    "announce" "assign" "clock" "clock_step" "count" "ending" "evict" "evict_missed" "fence" "holders" "inspect" "lease" "page"
    "primary" "queue" "record" "recovery" "recovery_steps" "release" "renew" "reservation" "scan" "shift" "state" "suspend"
    "withdraw"
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)+) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new($file));)+

        static ALL: &[&LazyLock<Script>] = &[$(&$name),+];

        #[cfg(test)]
        const SCRIPTS: &[&str] = &[$($file),+];
    };
}

scripts! {
    ACQUIRE = "acquire";
    SUSPEND = "suspend";
    RENEW = "renew";
    RELEASE = "release";
    WITHDRAW = "withdraw";
    EVICT = "evict";
    EVICT_MISSED = "evict_missed";
    INSPECT = "inspect";
    SCAN = "scan";
    PAGE = "page";
    SHIFT = "shift";
    RECOVERY = "recovery";
    ANNOUNCE = "announce";
    ASSIGN = "assign";
    COUNT = "count";
}

/// The command of a script that the user may not run; none if the script failed otherwise. The text of its error has the
/// hash of the script and the line of the command, or a later line that passes the error on.
pub(super) fn refused_command(error: &str) -> Option<&'static str> {
    // Such an error may also be about a key or a channel.
    if !error.contains("can't run this command") {
        return None;
    }
    let script = ALL.iter().find(|script| error.contains(&script.sha))?;
    let (_, from_line) = error.split_once("@user_script:")?;
    let line = from_line.split(|it: char| !it.is_ascii_digit()).next()?;
    let until_there: Vec<_> = script.source.lines().take(line.parse().ok()?).collect();
    let command_of = |line: &&'static str| {
        let (_, from_command) = line.split_once("call('")?;
        Some(from_command.split_once('\'')?.0)
    };
    until_there.iter().rev().find_map(command_of)
}

/// A script with the files that it includes.
fn assembled(name: &'static str) -> String {
    let mut source = String::new();
    include(name, &mut Vec::new(), &mut source);
    source
}

fn include(name: &'static str, included: &mut Vec<&'static str>, source: &mut String) {
    if included.contains(&name) {
        return;
    }
    included.push(name);
    let file = FILES.iter().find(|(known, _)| *known == name);
    let (_, text) = file.expect("the tests assemble every script");
    for line in text.split_inclusive('\n') {
        match line.strip_prefix(INCLUDE) {
            Some(names) => {
                for name in names.split_whitespace() {
                    include(name, included, source);
                }
            }
            None => source.push_str(line),
        }
    }
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
        const OF_REDIS: [&str; 4] = ["KEYS", "ARGV", "REDIS_VERSION_NUM", "VALKEY_VERSION_NUM"];
        let pieces = FILES.iter().flat_map(|(_, text)| pieces(text));
        pieces.filter(|piece| is_constant_name(piece) && !OF_REDIS.contains(piece))
    }

    #[test]
    fn a_command_is_named_if_the_user_may_not_run_it_and_not_if_a_key_or_a_channel_is_refused() {
        let (sha, mut lines) = (&RELEASE.sha, RELEASE.source.lines());
        let line = 1 + lines
            .position(|line| line.contains("call('SET'"))
            .expect("it sets");
        let error = |why| {
            format!(
                "ERR The user executing the script can't {why} script: {sha}, on @user_script:{line}."
            )
        };
        let command = error("run this command or subcommand");
        assert_eq!(refused_command(&command), Some("SET"));
        for other in ["access at least one of the keys", "publish to the channel"] {
            assert_eq!(refused_command(&error(other)), None);
        }
    }

    #[test]
    fn a_script_has_each_file_once_and_each_file_is_of_a_script() {
        let mut all = Vec::new();
        for name in SCRIPTS {
            let mut included = Vec::new();
            include(name, &mut included, &mut String::new());
            all.extend(included);
        }
        for (name, text) in FILES {
            assert!(all.contains(name), "no script includes {name}.lua");
            let first_line = text.lines().next();
            for script in SCRIPTS {
                let source = assembled(script);
                let times = source.lines().filter(|line| Some(*line) == first_line);
                assert!(times.count() <= 1, "{script} has {name}.lua twice");
            }
        }
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
        const OF_LUA: [&str; 15] = [
            "and", "elseif", "error", "function", "if", "in", "ipairs", "next", "not", "or",
            "pairs", "return", "tonumber", "type", "unpack",
        ];
        for name in SCRIPTS {
            let script = with_constants(&assembled(name));
            let pieces: Vec<_> = pieces(&script).collect();
            let mut defined: Vec<&str> = OF_LUA.to_vec();
            for (at, called) in pieces.iter().enumerate() {
                let before = |words| at.checked_sub(words).map_or("", |at| pieces[at]);
                if ["local", "function"].contains(&before(2)) && before(1) == " " {
                    defined.push(called);
                }
                let is_name = called.starts_with(|letter: char| letter.is_ascii_alphabetic());
                let is_called = is_name && pieces.get(at + 1).is_some_and(|it| it.starts_with('('));
                let is_method = before(1).ends_with('.');
                assert!(
                    !is_called || is_method || defined.contains(called),
                    "{name}.lua calls {called} before it is defined"
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
        for (_, text) in FILES {
            assert_eq!(pieces(text).collect::<String>(), *text);
            assert!(!text.contains("\\'") && !text.contains('"'));
        }
    }
}
