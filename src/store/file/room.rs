//! How much room the disk has. For whom room is reserved is not known here.

use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;

/// Fails if the disk says that it has not so much room. Finding out by writing would wear out the disk, and take room from
/// other programs meanwhile.
///
/// # Errors
/// There is a lack of room.
pub(super) fn check(directory: &Path, needed: u64, what_for: &str) -> io::Result<()> {
    match free_bytes(directory) {
        Some(free) if free < needed => Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{what_for} needs {needed} bytes of room on the disk, which has {free}"),
        )),
        Some(_) | None => Ok(()),
    }
}

/// How much room there is for this process; none if the file system does not say.
fn free_bytes(directory: &Path) -> Option<u64> {
    let found = statvfs(directory).ok()?;
    let blocks = match geteuid().is_root() {
        true => found.blocks_free(),
        false => found.blocks_available(),
    };
    (found.blocks() > 0).then(|| blocks.saturating_mul(found.fragment_size()))
}

/// Whether there was no room for more.
pub(super) fn is_lack_of_room(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
