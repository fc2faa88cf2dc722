//! Libraries that are preloaded into a process, to move its clock or to break its disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The library of `support/{name}.c`, compiled once.
pub(crate) fn preloaded(name: &str) -> PathBuf {
    static COMPILING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILING.lock();
    // Another test process may compile it at the same time.
    let library = format!("{name}.{}.so", std::process::id());
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(library);
    if !library.exists() {
        let source = format!("{}/tests/it/support/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .status();
        let is_compiled = compiled.is_ok_and(|status| status.success());
        assert!(is_compiled, "a C compiler is needed for {name}");
    }
    library
}
