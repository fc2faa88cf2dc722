//! The rule for the header of a script: it lists inputs and results, and the first statements name the inputs.
//!
//! `chunks` has the rules for the code of scripts.

use std::ops::Range;

use super::File;

/// The separator in a header between the fixed names and those that are repeated for each lock.
const FOR_EACH_LOCK: &str = "for each lock:";

/// The marker in a header before names that may be left out. A part of the script may read them.
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
/// first lock. An include begins with its purpose and reads neither. A part of one script reads the inputs for each
/// lock.
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
    if file.text.starts_with("-- Part of ") {
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
pub(super) fn is_script(file: &File) -> bool {
    file.has_extension("lua") && file.is_under("src")
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
    fn a_part_of_a_script_reads_what_is_there_for_each_lock() {
        let part = "-- Part of x.lua: reads the locks.\nlocal lock = KEYS[number * 2]\n";
        assert_eq!(header(&script(part)).len(), 0);
        let reading_fixed = part.replace("number * 2", "2");
        assert_eq!(header(&script(&reading_fixed)).len(), 1);
    }

    #[test]
    fn an_include_that_takes_input_is_refused() {
        let include = "-- Included before every script.\nlocal lock = KEYS[1]\n";
        assert_eq!(header(&script(include)).len(), 1);
    }
}
