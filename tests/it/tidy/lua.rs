//! Rules for scripts: the header lists inputs and results, the first statements name the inputs, and fences stay
//! numbers.

use std::ops::Range;

use super::File;

/// The separator in a header between the fixed names and those that are repeated for each lock.
const FOR_EACH_LOCK: &str = "for each lock:";

/// The marker in a header before names that may be left out. A script that continues this one reads them.
const AT_THE_END: &str = "at the end:";

/// A parsed header.
struct Header<'a> {
    keys: Input<'a>,
    arguments: Input<'a>,
    /// Everything after the header.
    code: &'a str,
}

/// The names of keys or of arguments.
struct Input<'a> {
    fixed: Vec<&'a str>,
    for_each_lock: Vec<&'a str>,
    at_the_end: Vec<&'a str>,
}

/// A script begins with its purpose, `-- KEYS:`, `-- ARGV:` and `-- Returns:`, and its first statements name exactly
/// the keys and arguments of the header. Inputs for each lock are read later: by a computed index, or by that of the
/// first lock. An include begins with its purpose and reads neither. A continuation of a script reads the inputs for
/// each lock.
pub(super) fn header(file: &File) -> Vec<String> {
    if !is_script(file) {
        return Vec::new();
    }
    let uses_input = ["KEYS", "ARGV"]
        .iter()
        .any(|input| file.text.contains(input));
    if file.text.starts_with("-- Included ") && !uses_input {
        return Vec::new();
    }
    if file.text.starts_with("-- Continues ") {
        return read_again(&file.text, "KEYS", 0..0)
            .chain(read_again(&file.text, "ARGV", 0..0))
            .collect();
    }
    match read(&file.text) {
        Ok(header) => compare(&header),
        Err(what) => vec![what.to_owned()],
    }
}

fn read(text: &str) -> Result<Header<'_>, &'static str> {
    let header_end = text
        .split_inclusive('\n')
        .take_while(|line| line.starts_with("--"))
        .map(str::len)
        .sum();
    let (header, code) = text.split_at(header_end);
    let mut lines = header.lines();
    let purpose = lines.next().and_then(|line| line.strip_prefix("-- "));
    if !purpose.is_some_and(|purpose| purpose.ends_with('.') && !purpose.starts_with("KEYS")) {
        return Err("the first line is not `-- ` and a sentence that says what it is for");
    }
    let mut item = |label: &str| {
        lines
            .next()
            .and_then(|line| line.strip_prefix("-- ")?.strip_prefix(label))
    };
    let keys = item("KEYS:").ok_or("the second line is not `-- KEYS: a, b`")?;
    let arguments = item("ARGV:").ok_or("the third line is not `-- ARGV: a, b_ms`")?;
    let returns = item("Returns:").ok_or("the fourth line is not `-- Returns: …`")?;
    if returns.trim().is_empty() {
        return Err("it does not say what it returns");
    }
    Ok(Header {
        keys: Input::named(keys),
        arguments: Input::named(arguments),
        code,
    })
}

impl<'a> Input<'a> {
    fn named(list: &'a str) -> Self {
        let (list, at_the_end) = list.split_once(AT_THE_END).unwrap_or((list, ""));
        let (fixed, for_each_lock) = list.split_once(FOR_EACH_LOCK).unwrap_or((list, ""));
        Self {
            fixed: names(fixed),
            for_each_lock: names(for_each_lock),
            at_the_end: names(at_the_end),
        }
    }

    /// The indices of the first lock's inputs, and of what follows if it is the only lock.
    fn of_first_lock(&self) -> Range<usize> {
        let first = self.fixed.len() + 1;
        first..first + self.for_each_lock.len() + self.at_the_end.len()
    }
}

fn names(list: &str) -> Vec<&str> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

fn compare(header: &Header<'_>) -> Vec<String> {
    let without_comments: String = header
        .code
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .flat_map(|line| [line, " "])
        .collect();
    let code = without_comments
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let mut rest = code.as_str();
    let inputs = [("KEYS", &header.keys), ("ARGV", &header.arguments)];
    for (input, names) in inputs {
        if names.fixed.is_empty() {
            continue;
        }
        let statement = destructuring(input, &names.fixed);
        match rest.strip_prefix(&statement) {
            Some(after) if after.is_empty() || after.starts_with(' ') => rest = after.trim_start(),
            _ => return vec![format!("the first statements lack `{statement}`")],
        }
    }
    let again =
        inputs
            .into_iter()
            .flat_map(|(input, names)| match names.for_each_lock.is_empty() {
                true if rest.contains(input) => vec![format!("{input} is used again")],
                true => Vec::new(),
                false => read_again(rest, input, names.of_first_lock()).collect(),
            });
    again.collect()
}

/// Inputs that are read by a literal index other than those of the first lock.
fn read_again<'a>(
    code: &'a str,
    input: &'a str,
    of_first_lock: Range<usize>,
) -> impl Iterator<Item = String> + 'a {
    let indices = code.split(input).skip(1);
    indices
        .filter_map(|rest| rest.strip_prefix('[')?.split(']').next()?.parse().ok())
        .filter(move |number| !of_first_lock.contains(number))
        .map(move |number: usize| format!("{input}[{number}] is not of the first lock"))
}

fn destructuring(input: &str, names: &[&str]) -> String {
    let values: Vec<_> = (1..=names.len())
        .map(|index| format!("{input}[{index}]"))
        .collect();
    format!("local {} = {}", names.join(", "), values.join(", "))
}

/// Whether it is a Redis script. Scripts for wrk have neither keys nor fences.
fn is_script(file: &File) -> bool {
    file.has_extension("lua") && file.is_under("src")
}

/// `tostring`, `cjson` and `..` write a large number with 14 digits: the last two of a fence would be lost.
pub(super) fn fence_as_text(file: &File) -> Vec<String> {
    if !is_script(file) {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    let code = lines.map(|(number, line)| (number + 1, line.split("--").next().unwrap_or(line)));
    code.filter(|(_, code)| {
        let converts = code.contains("tostring") || code.contains("cjson");
        converts || (code.contains("fence") && code.contains(".."))
    })
    .map(|(number, code)| format!("line {number}: {}", code.trim()))
    .collect()
}

/// One file computes fencing tokens, so that there is one rule: no other one bounds them or judges a counter.
pub(super) fn fence_computed_elsewhere(file: &File) -> Vec<String> {
    if !is_script(file) || file.path.ends_with("/fence.lua") {
        return Vec::new();
    }
    let of_fences = ["FENCE_MAX", "COUNTER_REGRESSED", "FENCES_EXHAUSTED"];
    let used = of_fences.iter().filter(|name| file.text.contains(**name));
    used.map(|name| format!("uses {name}")).collect()
}

/// A time, a bound or a key is a constant, and all constants are in `src/store/redis/constants.rs`: a value that is
/// written twice is changed once. Small numbers are lengths and offsets, and the two large ones convert units.
pub(super) fn constant_typed_again(file: &File) -> Vec<String> {
    if !is_script(file) {
        return Vec::new();
    }
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let is_constant = |word: &str| {
        let number = word.parse::<u64>().unwrap_or_default();
        number >= 100 && ![1_000, 1_000_000].contains(&number)
    };
    let is_name =
        |word: &str| word.len() > 1 && word.bytes().all(|it| it.is_ascii_uppercase() || it == b'_');
    let lines = file.text.lines().enumerate();
    let code = lines.map(|(number, line)| (number + 1, line.split("--").next().unwrap_or(line)));
    code.filter(|(_, code)| {
        let mut words = code.split(|letter| !is_of_word(letter));
        let declared = code.trim_start().strip_prefix("local ").unwrap_or_default();
        let declared = declared.split('=').next().unwrap_or_default();
        let mut declared = declared.split(',').map(str::trim);
        code.contains("'lh:") || words.any(is_constant) || declared.any(is_name)
    })
    .map(|(number, code)| format!("line {number}: {}", code.trim()))
    .collect()
}

/// A published message is a hint; a missing right to the channel must not abort a script in the middle.
pub(super) fn publish_that_fails(file: &File) -> Vec<String> {
    if !is_script(file) {
        return Vec::new();
    }
    let publishes = file.text.lines().filter(|line| line.contains("'PUBLISH'"));
    publishes
        .filter(|line| !line.contains("redis.pcall('PUBLISH'"))
        .map(|line| line.trim().to_owned())
        .collect()
}

mod tests {
    use super::*;

    const GOOD: &str = "-- Grants a lock.\n-- KEYS: lock, fence\n-- ARGV: claim, ttl_ms\n-- Returns: a code\n--   and more\n\
        local lock, fence = KEYS[1], KEYS[2]\nlocal claim, ttl_ms =\n    ARGV[1], ARGV[2]\nreturn 1\n";

    const SEVERAL: &str = "-- Grants locks.\n-- KEYS: for each lock: lock, fence\n\
        -- ARGV: attempt, ttl_ms, for each lock: claim\n-- Returns: a code\n\
        local attempt, ttl_ms = ARGV[1], ARGV[2]\n\
        if #KEYS == 2 then return { KEYS[1], KEYS[2], ARGV[3] } end\n\
        for number = 1, #KEYS / 2 do\n    local lock, claim = KEYS[number * 2 - 1], ARGV[2 + number]\nend\n";

    fn script(text: &str) -> File {
        let (path, text) = ("src/store/redis/lua/x.lua".to_owned(), text.to_owned());
        File { path, text }
    }

    #[test]
    fn a_script_that_keeps_to_its_header_is_fine() {
        let none: Vec<String> = Vec::new();
        assert_eq!(header(&script(GOOD)), none);
        let without_keys = "-- Scans.\n-- KEYS:\n-- ARGV: a\n-- Returns: b\nlocal a = ARGV[1]\n";
        assert_eq!(header(&script(without_keys)), none);
        assert_eq!(
            header(&script("-- Included before every script.\nlocal x = 1\n")),
            none
        );
    }

    #[test]
    fn a_script_that_strays_from_its_header_is_refused() {
        for (good, bad) in [
            ("-- Grants a lock.\n", ""),
            ("-- KEYS: lock, fence\n", ""),
            ("-- KEYS: lock, fence", "-- KEYS: lock"),
            ("-- KEYS: lock, fence", "-- KEYS: fence, lock"),
            ("-- ARGV: claim, ttl_ms", "-- ARGV: claim, ttl_ms, owner"),
            ("-- Returns: a code", "-- Returns:"),
            ("ARGV[1], ARGV[2]", "ARGV[2], ARGV[1]"),
            ("return 1", "return ARGV[3]"),
        ] {
            let text = GOOD.replacen(good, bad, 1);
            assert_ne!(text, GOOD, "{good}");
            assert_eq!(header(&script(&text)).len(), 1, "{bad} for {good}");
        }
    }

    #[test]
    fn what_is_there_for_each_lock_is_read_by_its_number() {
        let none: Vec<String> = Vec::new();
        assert_eq!(header(&script(SEVERAL)), none);
        for (good, bad) in [
            ("for each lock: lock", "for every lock: lock"),
            ("attempt, ttl_ms, for", "attempt, for"),
            ("ARGV[1], ARGV[2]", "ARGV[2], ARGV[1]"),
            ("KEYS[2], ARGV[3]", "KEYS[3], ARGV[3]"),
            ("KEYS[2], ARGV[3]", "KEYS[2], ARGV[2]"),
            ("KEYS[2], ARGV[3]", "KEYS[2], ARGV[4]"),
        ] {
            let text = SEVERAL.replacen(good, bad, 1);
            assert_ne!(text, SEVERAL, "{good}");
            assert_eq!(header(&script(&text)).len(), 1, "{bad} for {good}");
        }
    }

    #[test]
    fn what_may_be_left_out_comes_at_the_end() {
        let with_options = SEVERAL.replacen(
            "for each lock: claim\n",
            "for each lock: claim, at the end: channel\n",
            1,
        );
        assert_ne!(with_options, SEVERAL);
        assert_eq!(header(&script(&with_options)).len(), 0);
        for (number, is_there) in [(4, true), (5, false)] {
            let read = format!("KEYS[2], ARGV[{number}]");
            let text = with_options.replacen("KEYS[2], ARGV[3]", &read, 1);
            assert_eq!(header(&script(&text)).is_empty(), is_there, "{read}");
        }
    }

    #[test]
    fn what_continues_a_script_reads_what_is_there_for_each_lock() {
        let going_on =
            "-- Continues x.lua where its fast path ends.\nlocal lock = KEYS[number * 2]\n";
        assert_eq!(header(&script(going_on)).len(), 0);
        let reading_fixed = going_on.replace("number * 2", "2");
        assert_eq!(header(&script(&reading_fixed)).len(), 1);
    }

    #[test]
    fn an_include_that_takes_input_is_refused() {
        let include = "-- Included before every script.\nlocal lock = KEYS[1]\n";
        assert_eq!(header(&script(include)).len(), 1);
    }

    #[test]
    fn a_fence_that_becomes_text_is_refused() {
        for line in [
            "return tostring(x)",
            "cjson.encode(x)",
            "local text = fence .. ''",
        ] {
            assert_eq!(fence_as_text(&script(line)).len(), 1, "{line}");
        }
        for line in [
            "-- tostring loses digits",
            "local key = lock .. 'x'",
            "return fence",
        ] {
            assert_eq!(fence_as_text(&script(line)).len(), 0, "{line}");
        }
    }

    #[test]
    fn a_second_rule_for_fences_is_refused() {
        let own = "if math.abs(counter) + 1 > FENCE_MAX then";
        assert_eq!(fence_computed_elsewhere(&script(own)).len(), 1);
        let shared = "local fence, why = next_fence(counter, last_seen)";
        assert_eq!(fence_computed_elsewhere(&script(shared)).len(), 0);
    }

    #[test]
    fn a_constant_that_is_typed_again_is_refused() {
        for line in [
            "call('PEXPIRE', key, 60000)",
            "call('PEXPIRE', key, '700')",
            "local LAST_CALL_MS = other",
            "local a, LISTED_MAX = 1, 2",
            "call('PUBLISH', 'lh:1:wake:')",
        ] {
            assert_eq!(constant_typed_again(&script(line)).len(), 1, "{line}");
        }
        for line in [
            "local now_us = time[1] * 1000000 + time[2]",
            "call('PEXPIRE', key, TOMBSTONE_MS) -- 60000",
            "struct.unpack('>I4I8I6', record, #record - 17)",
            "local ttl_ms = kept_ms - TOMBSTONE_MS",
        ] {
            assert_eq!(constant_typed_again(&script(line)).len(), 0, "{line}");
        }
    }

    #[test]
    fn a_message_that_may_fail_is_refused() {
        for (line, count) in [
            ("redis.call('PUBLISH', 'c', '')", 1),
            ("call('PUBLISH', 'c', '')", 1),
            ("redis.pcall('PUBLISH', 'c', '')", 0),
        ] {
            assert_eq!(publish_that_fails(&script(line)).len(), count, "{line}");
        }
    }
}
