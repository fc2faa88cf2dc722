//! Every shell block of the documentation does what it says when it is pasted into a shell. Each runs by itself, against a
//! service of its own. Programs that need a cluster, a container engine or the whole repository are replaced by ones that
//! do nothing, so that of these only the shell's part is tested.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use leasehold::config::KeyHash;
use tempfile::TempDir;

use super::shell::{SHELLS, Shell, blocks};
use crate::process::Serving;

/// Programs that are replaced.
const REPLACED: [&str; 16] = [
    "docker",
    "kubectl",
    "kind",
    "buildah",
    "skopeo",
    "apt-get",
    "cargo",
    "git",
    "redis-cli",
    "openapi-python-client",
    "npx",
    "npm",
    "pip",
    "terraform",
    "sudo",
    "systemctl",
];
/// Files and scripts that the blocks expect in the directory of the reader.
const FILES: [&str; 5] = [
    "redis-password",
    "api-key",
    "admin-key",
    "read-key",
    "report.csv",
];
const SCRIPTS: [&str; 14] = [
    "backup.sh",
    "report.sh",
    "schedule.sh",
    "train.sh",
    "export.sh",
    "import.sh",
    "first-step.sh",
    "second-step.sh",
    "scripts/bench",
    "scripts/check-k8s",
    "scripts/image",
    "scripts/release",
    "scripts/sbom",
    "scripts/setup-tests",
];
/// Files at places where tests may not write.
const ELSEWHERE: [&str; 8] = [
    "/run/secrets/redis-password",
    "/run/secrets/sentinel-password",
    "/etc/leasehold/secrets/api-key",
    "/etc/leasehold/secrets/admin-key",
    "/etc/leasehold/secrets/read-key",
    "/var/lib/leasehold",
    "/etc/leasehold/keys.toml",
    "/etc/leasehold/secrets/$key",
];

/// Waits for streams as long as a reader needs to see that they work.
const CURL: &str = "#!/bin/sh\nPATH=/usr/local/bin:/usr/bin:/bin curl -m 5 \"$@\"\nstatus=$?\n\
    [ $status = 28 ] || exit $status\n";
const NOTHING: &str = "#!/bin/sh\nexit 0\n";

/// The directory of a reader.
struct Reader(TempDir);

impl Reader {
    fn new() -> Self {
        let reader = Self(tempfile::tempdir().unwrap());
        for directory in [
            "bin",
            "scripts",
            "run/secrets",
            "etc/leasehold/secrets",
            "var/lib/leasehold",
        ] {
            fs::create_dir_all(reader.path(directory)).unwrap();
        }
        for program in REPLACED {
            reader.program(&format!("bin/{program}"), NOTHING);
        }
        for script in SCRIPTS {
            reader.program(script, NOTHING);
        }
        reader.program("bin/curl", CURL);
        let leasehold = env!("CARGO_BIN_EXE_leasehold");
        // A server would run for ever, so its configuration is checked instead; a watcher sees enough in a second.
        let program = format!(
            "#!/bin/sh\ncase $1 in\nserve) set -- config check ;;\nwatch) timeout 1 {leasehold} \"$@\"; exit 0 ;;\nesac\n\
             exec {leasehold} \"$@\"\n"
        );
        reader.program("bin/leasehold", &program);
        for (number, file) in (0..).zip(
            FILES
                .iter()
                .copied()
                .chain(ELSEWHERE[..5].iter().map(|path| &path[1..])),
        ) {
            fs::write(reader.path(file), format!("only-for-this-test-{number}")).unwrap();
        }
        for directory in ["examples", "monitoring"] {
            let of_repository = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
            symlink(of_repository, reader.path(directory)).unwrap();
        }
        for file in ["keys.toml", "keys.toml.new"] {
            fs::write(reader.path(file), keys_file()).unwrap();
        }
        reader
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Pastes a block, which must not fail in any of its commands.
    fn paste(&self, shell: Shell, block: &str) -> Result<(), String> {
        let serving = Serving::start(&[]);
        let url = serving.url.as_str();
        let address = url.trim_start_matches("http://");
        let mut text = block
            .replace("http://locks.example:7625", url)
            .replace("localhost:7625", address);
        for path in ELSEWHERE {
            let own = self.path(&path[1..]);
            text = text.replace(path, own.to_str().unwrap());
        }
        // No block needs a real certificate, and the configuration reads it.
        text = text.replace("LEASEHOLD_REDIS_TLS_CA_FILE=/etc/redis/ca.pem \\\n", "");
        let path = format!(
            "{}:/usr/local/bin:/usr/bin:/bin",
            self.path("bin").display()
        );
        let object = format!("{url}/livez");
        let variables = [
            ("PATH", path.as_str()),
            ("LEASEHOLD_URL", url),
            ("OBJECT", &object),
            ("ETag", "x"),
            ("f", "7"),
        ];
        let output = shell.paste(
            &format!("set -e -o pipefail\n{text}"),
            self.0.path(),
            &variables,
        );
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{shell:?}: {}\n{text}\n{stdout}\n{stderr}",
                output.status
            )),
        }
    }
}

/// The keys file that the pages speak of.
fn keys_file() -> String {
    let hash = KeyHash::of(b"only-for-this-test");
    format!(
        "[principals.billing]\nkeys = [\"{hash}\"]\nrules = [{{ prefix = \"billing\", verbs = [\"acquire\"] }}]\n"
    )
}

/// The pages below this directory, with their text.
fn pages(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

#[test]
fn every_shell_block_of_the_documentation_can_be_pasted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    pages(&root.join("docs"), &mut found);
    pages(&root.join("examples"), &mut found);
    let mut count = 0;
    let mut wrong = Vec::new();
    let of_clients = ["", "go/", "java/", "python/", "rust/", "typescript/"];
    let of_clients = of_clients.map(|client| format!("clients/{client}README.md"));
    let others = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned);
    for page in of_clients.iter().chain(&others).map(|page| root.join(page)) {
        let text = fs::read_to_string(&page).unwrap();
        found.push((page, text));
    }
    for (path, text) in &found {
        for block in blocks(text) {
            count += 1;
            let comment = block
                .lines()
                .find(|line| line.split(' ').any(|word| word == "#"));
            wrong.extend(comment.map(|line| format!("zsh takes no comment: {line}")));
            for shell in SHELLS {
                if let Err(problem) = Reader::new().paste(shell, &block) {
                    wrong.push(format!("{}: {problem}", path.display()));
                }
            }
        }
    }
    assert!(count > 20, "only {count} blocks were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
