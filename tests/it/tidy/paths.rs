//! Dependencies between layers: four layers, one direction, checked by the paths that a file uses.

use super::File;
use super::rules::without_tests;

/// A part of the source and the paths that it must not use.
struct Boundary {
    /// Files whose path begins with this.
    within: &'static str,
    /// Exceptions: files whose path begins with one of these.
    except: &'static [&'static str],
    /// Paths that begin with one of these are refused.
    refuses: &'static [&'static str],
}

const BOUNDARIES: [Boundary; 8] = [
    // No I/O, no runtime, no wire format, and no layer above.
    Boundary {
        within: "src/domain",
        except: &[],
        refuses: &[
            "tokio",
            "tokio_util",
            "axum",
            "redis",
            "bb8_redis",
            "serde",
            "serde_json",
            "crate::store",
            "crate::service",
            "crate::http",
            "crate::config",
            "crate::telemetry",
        ],
    },
    Boundary {
        within: "src/service",
        except: &[],
        refuses: &[
            "axum",
            "hyper",
            "serde",
            "serde_json",
            "redis",
            "crate::http",
            "crate::store::redis",
            "crate::store::file",
            "crate::store::memory",
        ],
    },
    Boundary {
        within: "src/store",
        except: &[],
        refuses: &["axum", "hyper", "crate::service", "crate::http"],
    },
    Boundary {
        within: "src/server",
        except: &[],
        refuses: &[
            "crate::http",
            "crate::service",
            "crate::store",
            "crate::domain",
        ],
    },
    // A pure function of the state, an operation and the time.
    Boundary {
        within: "src/store/state",
        except: &[],
        refuses: &[
            "tokio",
            "futures_util",
            "uuid",
            "std::time::Instant",
            "std::time::SystemTime",
            "std::fs",
            "std::net",
            "std::thread",
            "std::collections::HashMap",
            "crate::config",
            "crate::limits",
            "crate::telemetry",
            "crate::store::file",
            "crate::store::memory",
            "crate::store::redis",
        ],
    },
    Boundary {
        within: "src/",
        except: &["src/http", "src/server"],
        refuses: &["axum"],
    },
    Boundary {
        within: "src/",
        except: &["src/store/redis"],
        refuses: &["redis", "bb8_redis"],
    },
    Boundary {
        within: "src/",
        except: &["src/store/file"],
        refuses: &["redb"],
    },
];

/// A URL selects the store: HTTP knows none of them.
const HTTP: Boundary = Boundary {
    within: "src/http",
    except: &[],
    refuses: &[
        "crate::store::redis",
        "crate::store::file",
        "crate::store::memory",
    ],
};

/// No file uses a path that its layer must not know.
pub(super) fn forbidden(file: &File) -> Vec<String> {
    if !file.has_extension("rs") || !file.is_under("src/") {
        return Vec::new();
    }
    let used = used_paths(without_tests(&file.text));
    let mut wrong: Vec<_> = BOUNDARIES
        .iter()
        .chain([&HTTP])
        .filter(|boundary| file.is_under(boundary.within))
        .filter(|boundary| !boundary.except.iter().any(|free| file.is_under(free)))
        .flat_map(|boundary| boundary.refuses)
        // An own module may have the name of a crate; then the path is not that of the crate.
        .filter(|refused| !file.text.contains(&format!("mod {refused};")))
        .filter(|refused| used.iter().any(|path| is_within(path, refused)))
        .map(|refused| format!("uses {refused}"))
        .collect();
    wrong.sort();
    wrong.dedup();
    wrong
}

fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every path in the code: those of `use` declarations in full, and qualified paths in expressions.
fn used_paths(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut paths = Vec::new();
    let mut elsewhere = String::new();
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("use ") {
        elsewhere.push_str(before);
        rest = after;
        if before.is_empty() || before.ends_with([' ', '\n', ')']) {
            let (tree, behind) = after.split_once(';').unwrap_or((after, ""));
            let tree: String = tree.split_whitespace().collect();
            expand("", &tree, &mut paths);
            rest = behind;
        }
    }
    elsewhere.push_str(rest);
    let is_in_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let inline = elsewhere.split(|letter| !is_in_path(letter));
    paths.extend(inline.filter(|word| word.contains("::")).map(str::to_owned));
    paths
}

/// Expands a `use` tree into its paths.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, group)) = tree.split_once('{') else {
        paths.push(format!("{prefix}{tree}"));
        return;
    };
    let prefix = format!("{prefix}{head}");
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&prefix, &group[start..at], paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < group.len() {
        expand(&prefix, &group[start..], paths);
    }
}

mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        let (path, text) = (path.to_owned(), text.to_owned());
        forbidden(&File { path, text })
    }

    #[test]
    fn every_boundary_refuses_what_crosses_it() {
        for (path, text) in [
            ("src/domain/name.rs", "use tokio::time::Instant;"),
            (
                "src/domain.rs",
                "fn f() { let x = serde_json::Value::Null; }",
            ),
            ("src/domain/name.rs", "use crate::{store::Fault};"),
            ("src/service/metrics.rs", "pub(crate) use axum::Json;"),
            (
                "src/service.rs",
                "use crate::store::{LockStore, redis::RedisStore};",
            ),
            ("src/store/memory.rs", "use crate::service::LockService;"),
            ("src/server/peer.rs", "use crate::http::Route;"),
            ("src/store/state.rs", "use std::time::{Duration, Instant};"),
            ("src/store/state/locks.rs", "use tokio::time::Instant;"),
            ("src/cli/serve.rs", "use axum::Router;"),
            ("src/telemetry.rs", "#[derive(redis::ToRedisArgs)]"),
            (
                "src/http/locks.rs",
                "use crate::{\n    domain::Claim,\n    store::{memory::MemoryStore},\n};",
            ),
        ] {
            assert_eq!(wrong(path, text).len(), 1, "{path}: {text}");
        }
    }

    #[test]
    fn what_stays_within_its_room_is_fine() {
        for (path, text) in [
            ("src/http.rs", "use axum::Router;"),
            (
                "src/store/redis/pool.rs",
                "use redis::Client; use bb8_redis::bb8;",
            ),
            ("src/store.rs", "pub mod redis; fn f() { redis::open(); }"),
            (
                "src/service.rs",
                "use tokio::time::Instant; // axum::Json is not for us",
            ),
            (
                "src/domain.rs",
                "#[cfg(test)]\nmod tests {\n    use tokio::test;\n}",
            ),
            ("src/cli/serve.rs", "use crate::store::redis::RedisStore;"),
            ("tests/it/main.rs", "use axum::Router;"),
        ] {
            let none: Vec<String> = Vec::new();
            assert_eq!(wrong(path, text), none, "{path}: {text}");
        }
    }
}
