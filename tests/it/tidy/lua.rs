//! Rules about scripts: the header says what goes in and out, the first statements name it, and fences stay numbers.

use super::File;

/// What a header says.
struct Header<'a> {
    keys: Vec<&'a str>,
    arguments: Vec<&'a str>,
    /// Everything after the header.
    code: &'a str,
}

/// A script begins with its purpose, `-- KEYS:`, `-- ARGV:` and `-- Returns:`, and its first statements name exactly
/// the keys and arguments of the header. An include begins with its purpose and touches neither.
pub(super) fn header(file: &File) -> Vec<String> {
    if !file.has_extension("lua") {
        return Vec::new();
    }
    let uses_input = ["KEYS", "ARGV"]
        .iter()
        .any(|input| file.text.contains(input));
    if file.text.starts_with("-- Included ") && !uses_input {
        return Vec::new();
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
        keys: names(keys),
        arguments: names(arguments),
        code,
    })
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
    for (input, names) in [("KEYS", &header.keys), ("ARGV", &header.arguments)] {
        if names.is_empty() {
            continue;
        }
        let statement = destructuring(input, names);
        match rest.strip_prefix(&statement) {
            Some(after) if after.is_empty() || after.starts_with(' ') => rest = after.trim_start(),
            _ => return vec![format!("the first statements lack `{statement}`")],
        }
    }
    let uses_more = ["KEYS", "ARGV"].iter().any(|input| rest.contains(input));
    match uses_more {
        true => vec!["KEYS or ARGV is used again after the first statements".to_owned()],
        false => Vec::new(),
    }
}

fn destructuring(input: &str, names: &[&str]) -> String {
    let values: Vec<_> = (1..=names.len())
        .map(|index| format!("{input}[{index}]"))
        .collect();
    format!("local {} = {}", names.join(", "), values.join(", "))
}

/// `tostring`, `cjson` and `..` write a large number with 14 digits: the last two of a fence would be lost.
pub(super) fn fence_as_text(file: &File) -> Vec<String> {
    if !file.has_extension("lua") {
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

mod tests {
    use super::*;

    const GOOD: &str = "-- Grants a lock.\n-- KEYS: lock, fence\n-- ARGV: claim, ttl_ms\n-- Returns: a code\n--   and more\n\
        local lock, fence = KEYS[1], KEYS[2]\nlocal claim, ttl_ms =\n    ARGV[1], ARGV[2]\nreturn 1\n";

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
}
