//! Documentation pages and manifests that list things from the code must list all of them, and nothing else.

mod blocks;
mod links;
mod redis_user;
mod reference;
pub(crate) mod shell;
mod shown_by;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Output;

use leasehold::config::{ADMIN, KeysFile, keys};
use leasehold::domain::Verb;
use leasehold::limits::Limit;
use tempfile::NamedTempFile;

use crate::process::{Serving, leasehold};

const METRICS_PAGE: &str = include_str!("../../docs/reference/metrics.md");
const KEYS_PAGE: &str = include_str!("../../docs/reference/keys.md");
const LIMITS_PAGE: &str = include_str!("../../docs/reference/limits.md");
const DOCKERFILE: &str = include_str!("../../Dockerfile");
const OVERLAY: &str = include_str!("../../k8s/overlays/dev/kustomization.yaml");
const COMPOSE: &str = include_str!("../../compose.yaml");
const UNIT: &str = include_str!("../../packaging/leasehold.service");
const VALKEY: &str = include_str!("../../k8s/components/valkey/valkey.conf");
const INSTALLING: &str = include_str!("../../docs/how-to/install.md");
const DEPLOYMENT: &str = include_str!("../../k8s/base/deployment.yaml");
const ENVIRONMENT: &str = include_str!("../../k8s/base/leasehold.env");

/// The kind of each metric family, and its exposed samples.
fn exposed(metrics: &str) -> BTreeMap<&str, (&str, Vec<&str>)> {
    let mut families = BTreeMap::new();
    let mut current = "";
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            families.insert(name, (kind, Vec::new()));
            current = name;
        } else if line.starts_with(current) && !current.is_empty() {
            families.get_mut(current).unwrap().1.push(line);
        }
    }
    families
}

/// The rows of the page by name: the cells after the name.
fn rows() -> BTreeMap<&'static str, Vec<&'static str>> {
    METRICS_PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(name, rest)| (name, rest.split('|').map(str::trim).collect()))
        .collect()
}

/// The labels of a sample with their values.
fn labels(sample: &str) -> Vec<(&str, &str)> {
    let Some((_, rest)) = sample.split_once('{') else {
        return Vec::new();
    };
    let (inside, _) = rest.rsplit_once('}').unwrap();
    inside
        .split("\",")
        .map(|label| label.split_once("=\"").unwrap())
        .map(|(name, value)| (name, value.trim_end_matches('"')))
        .filter(|(name, _)| *name != "le")
        .collect()
}

#[tokio::test]
async fn the_page_of_metrics_has_every_family_with_its_labels_and_no_other() {
    let serving = Serving::start(&[]);
    let url = format!("{}/metrics", serving.url);
    // A route has a series only after its first response.
    reqwest::get(&url).await.unwrap();
    let metrics = reqwest::get(&url).await.unwrap().text().await.unwrap();
    let (exposed, mut rows) = (exposed(&metrics), rows());
    // Only a quorum has these, or a service with groups of names; `monitoring::counting` reads them.
    rows.retain(|name, _| {
        let mut ours = ["leasehold_quorum_", "leasehold_group_"].into_iter();
        !ours.any(|start| name.starts_with(start))
    });
    assert_eq!(
        rows.keys().collect::<Vec<_>>(),
        exposed.keys().collect::<Vec<_>>()
    );
    for (name, (kind, samples)) in exposed {
        let row = &rows[name];
        assert_eq!(row[0], kind, "{name}");
        for (label, value) in samples.into_iter().flat_map(labels) {
            assert!(row[1].contains(&format!("`{label}`")), "{name}: {label}");
            // Our own label values are few, so the page lists all of them.
            if name.starts_with("leasehold_") && name != "leasehold_build_info" {
                assert!(
                    row[1].split([' ', ',', ';']).any(|word| word == value),
                    "{name}: {value}"
                );
            }
        }
    }
}

#[test]
fn the_page_of_limits_has_every_limit_and_every_key_that_is_one() {
    for limit in Limit::ALL {
        let label = limit.label();
        assert!(LIMITS_PAGE.contains(&format!("`{label}`")), "{label}");
    }
    let is_limit = |name: &str| {
        let ends = ["_max", "_kept", ".kept", "_timeout"];
        ends.iter().any(|end| name.ends_with(end))
    };
    for name in keys::all().iter().map(|key| key.name.as_str()) {
        // The page names the fields of a claim together. What Redis may take is no limit on clients.
        if !is_limit(name) || name.starts_with("lease.") || name.starts_with("redis.") {
            continue;
        }
        let name = name.strip_prefix("server.").unwrap_or(name);
        assert!(LIMITS_PAGE.contains(&format!("`{name}`")), "{name}");
    }
}

/// The first cells of the table of the page that begins with this heading.
fn column<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let rows = page.lines().skip_while(|line| !line.starts_with(heading));
    let rows = rows.skip(2).map_while(|line| line.strip_prefix("| "));
    let mut cells: Vec<_> = rows
        .filter_map(|row| Some(row.strip_prefix('`')?.split_once('`')?.0))
        .collect();
    cells.sort_unstable();
    cells
}

/// The service names the keys that it knows where it refuses another one.
#[test]
fn the_page_of_keys_has_every_key_of_the_file_and_every_verb() {
    let known = |contents: &str| {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(contents.as_bytes()).unwrap();
        let error = KeysFile::read(file.path()).unwrap_err().to_string();
        let (_, known) = error.split_once("known here: ").expect(&error);
        let mut known: Vec<_> = known.trim_end().split(", ").map(str::to_owned).collect();
        known.sort_unstable();
        known
    };
    let of_principal = "[principals.a]\nxxxxxxxx = 1\n";
    assert_eq!(
        column(KEYS_PAGE, "| key of a principal"),
        known(of_principal)
    );
    let of_quota = "[quota]\nxxxxxxxx = 1\n";
    assert_eq!(column(KEYS_PAGE, "| key | what it bounds"), known(of_quota));
    for (place, contents) in [
        ("top", "xxxxxxxx = 1\n"),
        ("rule", "[principals.a]\nrules = [{ xxxxxxxx = 1 }]\n"),
    ] {
        for key in known(contents) {
            let forms = [format!("`{key}`"), format!("{key} = "), format!("[{key}")];
            assert!(
                forms.iter().any(|form| KEYS_PAGE.contains(form)),
                "{place}: {key}"
            );
        }
    }
    let mut verbs: Vec<_> = Verb::ALL
        .map(Verb::as_str)
        .into_iter()
        .chain([ADMIN])
        .collect();
    verbs.sort_unstable();
    assert_eq!(column(KEYS_PAGE, "| verb "), verbs);
}

/// The table that `scripts/bench` generates into a page.
fn figures(page: &'static str) -> Vec<&'static str> {
    let (_, rest) = page.split_once("<!-- figures: begin -->").unwrap();
    let (table, _) = rest.split_once("<!-- figures: end -->").unwrap();
    table
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect()
}

#[test]
fn both_pages_of_performance_are_of_one_measurement() {
    let all = figures(include_str!("../../docs/performance/details.md"));
    let few = figures(include_str!("../../docs/performance/README.md"));
    assert!((8..15).contains(&few.len()), "{} rows", few.len());
    for row in few {
        assert!(all.contains(&row), "{row}");
    }
}

/// `config check` in the environment of the manifests.
fn checked(variables: &[(&str, String)]) -> Output {
    let mut command = leasehold(&["config", "check"]);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.output().unwrap()
}

/// The value of this key in the Secret of the overlay for trying it out.
fn secret_of_overlay(key: &str) -> &'static str {
    let literal = format!("- {key}=");
    let mut lines = OVERLAY.lines();
    let value = lines.find_map(|line| line.trim_start().strip_prefix(&literal));
    value.unwrap_or_else(|| panic!("the overlay has no {key}"))
}

/// The settings with which the package for Debian starts its service, and those that its comments suggest.
#[test]
fn the_settings_of_the_package_are_accepted() {
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/leasehold.toml");
    let check = |settings: &str| leasehold(&["config", "check", "--config", settings]).output();
    assert_eq!(check(settings).unwrap().status.code(), Some(0));
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "0123456789abcdef0123456789abcdef").unwrap();
    let text = std::fs::read_to_string(settings).unwrap();
    let (_, open) = text.split_once("# With ").unwrap();
    let (open, _) = open.split_once(" other machines").unwrap();
    let changed = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(changed.path(), open).unwrap();
    let changed = changed.path().to_str().unwrap();
    assert_eq!(check(changed).unwrap().status.code(), Some(78));
    let (_, variable) = INSTALLING.split_once("Environment=").unwrap();
    let (variable, _) = variable.split_once('=').unwrap();
    let mut command = leasehold(&["config", "check", "--config", changed]);
    let output = command.env(variable, key.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(UNIT.contains("leasehold serve --config /etc/leasehold/leasehold.toml"));
}

/// The Valkey of compose.yaml has the settings that the component of the manifests has.
#[test]
fn compose_starts_a_valkey_that_keeps_what_it_acknowledged() {
    let command = COMPOSE.split_once("valkey-server ").unwrap().1;
    let command = command.split_once("volumes").unwrap().0.replace("--", "\n");
    let of_compose: Vec<_> = command.lines().map(str::trim).collect();
    let settings = [
        "appendonly",
        "appendfsync",
        "save",
        "maxmemory",
        "maxmemory-policy",
    ];
    for setting in settings {
        let of_manifests = VALKEY
            .lines()
            .find(|line| line.starts_with(&format!("{setting} ")));
        assert!(
            of_compose.contains(&of_manifests.unwrap()),
            "{setting}: {of_compose:?}"
        );
    }
}

/// A Secret without `redis-password` sets no variable, and that is a Redis without a password.
#[test]
fn the_manifests_need_no_password_of_redis() {
    let optional = "key: redis-password\n                  optional: true\n";
    assert!(DEPLOYMENT.contains(optional) && !ENVIRONMENT.contains("REDIS_PASSWORD"));
    for password in ["", "only-for-trying-it"] {
        let output = checked(&[
            ("LEASEHOLD_STORE", "redis://redis.example:6379/0".to_owned()),
            ("LEASEHOLD_REDIS_PASSWORD", password.to_owned()),
        ]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn the_environment_of_the_manifests_is_accepted() {
    let secrets = tempfile::tempdir().unwrap();
    let given = ENVIRONMENT.lines().filter(|line| !line.starts_with('#'));
    let mut variables: Vec<_> = given
        .map(|line| line.split_once('=').unwrap())
        .map(|(name, value)| match value.rsplit_once("/secrets/") {
            Some((_, file)) => {
                let path = secrets.path().join(file);
                std::fs::write(&path, secret_of_overlay(file)).unwrap();
                (name, path.to_str().unwrap().to_owned())
            }
            None => (name, value.to_owned()),
        })
        .collect();
    variables.push((
        "LEASEHOLD_STORE",
        "redis://leasehold@redis.example:6379/0".to_owned(),
    ));
    variables.push(("LEASEHOLD_REDIS_PASSWORD", "only-for-trying-it".to_owned()));
    let known: Vec<_> = keys::all().iter().map(|key| key.variable()).collect();
    for (name, _) in &variables {
        assert!(known.iter().any(|variable| variable == name), "{name}");
    }
    let output = checked(&variables);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn the_image_has_the_version_of_the_package() {
    let versions: Vec<_> = DOCKERFILE
        .lines()
        .filter_map(|line| line.strip_prefix("ARG VERSION="))
        .collect();
    assert_eq!(versions, [env!("CARGO_PKG_VERSION"); 2]);
}
