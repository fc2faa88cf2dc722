//! Rules for the code of scripts: lengths, fences, constants and messages.

use super::File;
use super::lua::is_script;

/// The most lines that a function may have, and the most lines of code outside of functions between two includes.
const CHUNK_LINES_MAX: usize = 70;

/// The most lines that a file may have.
const FILE_LINES_MAX: usize = 150;

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

/// Neither a file, nor a function, nor the code outside of functions between two includes is too long.
pub(super) fn chunk_too_long(file: &File) -> Vec<String> {
    if !is_script(file) {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        wrong.push(format!("{lines} lines, at most {FILE_LINES_MAX}"));
    }
    let (mut outside, mut function) = (0, None);
    for line in file.text.lines().chain(["-- include: "]) {
        if line.starts_with("-- include: ") {
            if outside > CHUNK_LINES_MAX {
                wrong.push(format!(
                    "{outside} lines outside of functions, at most {CHUNK_LINES_MAX}"
                ));
            }
            outside = 0;
        }
        if line.starts_with("local function ") {
            function = Some((line, 0));
        }
        let Some((name, length)) = &mut function else {
            outside += usize::from(!line.is_empty() && !line.trim_start().starts_with("--"));
            continue;
        };
        *length += 1;
        if line == "end" {
            if *length > CHUNK_LINES_MAX {
                wrong.push(format!("{length} lines, at most {CHUNK_LINES_MAX}: {name}"));
            }
            function = None;
        }
    }
    wrong
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

    fn script(text: &str) -> File {
        let (path, text) = ("src/store/redis/lua/x.lua".to_owned(), text.to_owned());
        File { path, text }
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
    fn a_long_chunk_is_refused() {
        let function = |lines| format!("local function f()\n{}end\n", "    g()\n".repeat(lines));
        let wrong = |text: &str| chunk_too_long(&script(text));
        assert_eq!(wrong(&function(68).repeat(2)).len(), 0);
        assert!(wrong(&function(69))[0].starts_with("71 lines"));
        let outside = "if a then\n    b() -- Why.\nend\n";
        assert_eq!(wrong(&outside.repeat(23)).len(), 0);
        assert!(wrong(&outside.repeat(24))[0].starts_with("72 lines"));
        let two_chunks = [outside.repeat(23), outside.repeat(23)].join("-- include: x\n");
        assert_eq!(wrong(&two_chunks).len(), 0);
        assert_eq!(wrong(&"-- Why.\n".repeat(150)).len(), 0);
        assert!(wrong(&"-- Why.\n".repeat(151))[0].starts_with("151 lines"));
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
            "local RESERVATION_EXTENSION_MS = other",
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
