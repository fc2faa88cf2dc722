//! Tests of a database that is opened again after an error.

use super::super::super::state::StoreTime;
use super::*;

fn rows_of(disk: &Disk) -> Vec<(Vec<u8>, Vec<u8>)> {
    let take = |rows: &mut Vec<_>, key: &[u8], value: &[u8]| {
        rows.push((key.to_vec(), value.to_vec()));
        Ok(())
    };
    disk.read(|_| Vec::new(), take).expect("the file is whole")
}

#[test]
fn after_an_error_of_the_disk_all_rows_are_in_another_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let time = StoreTime::from_unix_us(1_000);
    let clocks = Clocks {
        store: time,
        rows: time,
    };
    let mut disk = Disk::open(directory.path(), clocks).expect("it is empty");
    let row = |number: u8| (vec![b'l', number], Some(vec![number]));
    let first = (0..100).map(row).collect();
    disk.write(&first, clocks).expect("there is room");
    let old = File::open(directory.path().join(FILE)).expect("it is there");
    disk.close_database();
    disk.sync_failure.note();
    disk.write(&[row(100)].into(), clocks)
        .expect("there is room");
    assert!(!disk.sync_failure.is_noted());
    let expected: Vec<_> = (0..=100)
        .map(|number| (vec![b'l', number], vec![number]))
        .collect();
    assert_eq!(rows_of(&disk), expected);
    let inode = |file: &File| file.metadata().expect("it is open").ino();
    let new = File::open(directory.path().join(FILE)).expect("it is there");
    assert_ne!(inode(&new), inode(&old));
    drop(disk);
    let disk = Disk::open(directory.path(), clocks).expect("it is whole");
    assert_eq!(rows_of(&disk), expected);
}

/// The first of them has the same time, and not what was reported since.
#[test]
fn a_database_without_the_last_of_several_commits_of_one_moment_is_refused() {
    let [directory, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let time = StoreTime::from_unix_us(1_000);
    let clocks = Clocks {
        store: time,
        rows: time,
    };
    let commit = |directory: &Path| {
        let mut disk = Disk::open(directory, clocks).expect("it can be used");
        disk.write(&Rows::new(), clocks).expect("there is room");
    };
    let refused = || {
        let disk = Disk::open(directory.path(), clocks).expect("it is whole");
        let read = disk.read(|_| (), |(), _, _| Ok(()));
        read.err().map(|error| error.to_string())
    };
    let file = directory.path().join(FILE);
    commit(directory.path());
    let before = fs::read(&file).expect("it is there");
    commit(directory.path());
    assert_eq!(refused(), None);
    fs::write(&file, before).expect("there is room");
    let lacks = refused().expect("a commit is missing");
    assert!(
        lacks.contains("lacks changes that were reported"),
        "{lacks}"
    );
    for _ in 0..5 {
        commit(other.path());
    }
    fs::copy(other.path().join(FILE), &file).expect("there is room");
    let foreign = refused().expect("it is another database");
    assert!(foreign.contains("of another directory"), "{foreign}");
}
