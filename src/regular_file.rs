//! Files of this process in directories where something else may have been put: only a regular file is opened. What is in
//! the files is not known here.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file. A FIFO would keep the process waiting, and a symbolic link would lead it to another file.
///
/// # Errors
/// The file cannot be opened; or what is there is no regular file, and what to do about it.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let opened = options
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path);
    match opened {
        Ok(file) => {
            check(file.metadata()?.file_type())?;
            Ok(file)
        }
        // The error of what is there is seldom the one that says what it is.
        Err(error) => find(path).and(Err(error)),
    }
}

/// What is known of a regular file; `None` if nothing is there.
///
/// # Errors
/// What is there is no regular file, and what to do about it; or this cannot be found out.
pub(crate) fn find(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => check(found.file_type()).map(|()| Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn check(found: FileType) -> io::Result<()> {
    let what = if found.is_file() {
        return Ok(());
    } else if found.is_symlink() {
        "a symbolic link"
    } else if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a FIFO"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let problem = format!("it is {what} instead of a regular file; move it away");
    Err(io::Error::other(problem))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_neither_opened_nor_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        mkfifo(&at("a FIFO"), Mode::S_IRWXU).expect("there is room");
        symlink(at("nothing"), at("a symbolic link")).expect("there is room");
        fs::create_dir(at("a directory")).expect("there is room");
        let _listener = UnixListener::bind(at("a socket")).expect("a short path");
        for what in ["a FIFO", "a symbolic link", "a directory", "a socket"] {
            for options in [
                OpenOptions::new().read(true),
                OpenOptions::new().write(true).create(true),
            ] {
                let refused = open(options, &at(what)).expect_err(what).to_string();
                let expected = format!("it is {what} instead of a regular file; move it away");
                assert_eq!(refused, expected);
                assert_eq!(find(&at(what)).expect_err(what).to_string(), expected);
            }
        }
        assert!(!at("nothing").exists());
    }

    #[test]
    fn a_regular_file_is_found_and_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        assert!(find(&path).expect("nothing is there").is_none());
        let missing = open(OpenOptions::new().read(true), &path).expect_err("nothing is there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        open(OpenOptions::new().write(true).create(true), &path).expect("there is room");
        let found = find(&path).expect("a file is there");
        assert_eq!(found.map(|found| found.len()), Some(0));
    }
}
