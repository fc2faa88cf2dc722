//! The time of the last commit that was confirmed, in the file of the directory's lock.
//!
//! If the end of a database is damaged after a crash, redb cannot distinguish the last commit from one that was cut
//! short, and goes on from the commit before it. Whoever puts an older copy in its place does the same. In both cases
//! leases that were reported would be missing, so a process that starts compares the clock of the database with this time.
//!
//! The time is written after the commit, and not synced. It survives the end of the process however that ends. After a loss
//! of power it may be the time of an earlier commit, and never that of one that was not confirmed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::super::state::StoreTime;

/// The time in microseconds, and its complement, by which a time that was half written is recognised.
type Bytes = [u8; 16];

/// The time that was written last; none if there is none that can be read.
pub(super) fn read(lock: &File) -> Option<StoreTime> {
    let mut bytes: Bytes = [0; 16];
    lock.read_exact_at(&mut bytes, 0).ok()?;
    let time = (u128::from_be_bytes(bytes) >> 64) as u64;
    (bytes == encode(time)).then(|| StoreTime::from_unix_us(time))
}

/// Writes the time of a commit. A failure, such as a full disk, leaves an earlier time, which is true as well.
pub(super) fn write(lock: &File, time: StoreTime) {
    let _ = lock.write_all_at(&encode(time.unix_us()), 0);
}

fn encode(time: u64) -> Bytes {
    (u128::from(time) << 64 | u128::from(!time)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_was_written_and_no_other() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file), None);
        let time = StoreTime::from_unix_us(1_764_000_000_000_001);
        write(&file, time);
        assert_eq!(read(&file), Some(time));
        file.write_all_at(&[0], 7).unwrap();
        assert_eq!(read(&file), None);
    }
}
