//! Stores equal files of a job's ranks on disk once, as hard links to a file in [`SHARED_FOLDER`] beside the
//! recordings. Each recording still has all of its files, and opens without the others. Best effort: if a file system
//! has no hard links, each recording keeps its own copy.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use crate::folder::{self, MACHINE_FILE};
use crate::storage;

/// Folder with a link to each shared file, in the folder of the job.
const SHARED_FOLDER: &str = ".shared";
/// Larger files are not shared, as they differ between ranks.
const BYTES_MAX: u64 = 64 << 20;

/// Shares the files that the recording in `folder` may have in common with recordings beside it.
pub(crate) fn share(folder: &Path) {
    let Some(job) = folder.parent().filter(|job| is_of_job(job)) else {
        return;
    };
    let store = job.join(SHARED_FOLDER);
    let made = DirBuilder::new().mode(0o700).create(&store);
    if made.is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
        return;
    }
    for name in [MACHINE_FILE].into_iter().chain(storage::SHARED_TABLES) {
        // A file that can't be shared stays as it is.
        let _ = share_file(&store, folder, name);
    }
}

/// Whether `parent` belongs to one job. The current folder, or a folder where others may write (`/tmp`), can have
/// recordings of several jobs.
fn is_of_job(parent: &Path) -> bool {
    let is_current = parent.as_os_str().is_empty() || parent == Path::new(".");
    let is_ours = fs::metadata(parent).is_ok_and(|folder| folder.mode() & 0o022 == 0);
    !is_current && is_ours
}

fn share_file(store: &Path, folder: &Path, name: &str) -> io::Result<()> {
    let file = folder.join(name);
    let contents = nearpage_files::read(&file, BYTES_MAX)?;
    let checksum = crc32fast::hash(&contents);
    let kept = store.join(format!("{checksum:08x}-{}-{name}", contents.len()));
    match fs::hard_link(&file, &kept) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        // This is the first file with these contents, or links are refused.
        linked => return linked,
    }
    let inode = |path: &Path| -> io::Result<(u64, u64)> {
        let found = fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino()))
    };
    // An equal checksum is no proof of equal contents. Renaming a link over a link to the same file does nothing.
    let is_same = nearpage_files::read(&kept, BYTES_MAX)? == contents;
    if !is_same || inode(&kept)? == inode(&file)? {
        return Ok(());
    }
    let unfinished = folder::unfinished(&file);
    fs::hard_link(&kept, &unfinished)?;
    fs::rename(&unfinished, &file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn links(file: &Path) -> u64 {
        fs::metadata(file).unwrap().nlink()
    }

    fn recording(job: &Path, name: &str, machine: &str) -> std::path::PathBuf {
        let folder = job.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(MACHINE_FILE), machine).unwrap();
        folder
    }

    #[test]
    fn equal_files_of_ranks_are_one() {
        let job = tempfile::tempdir().unwrap();
        let ranks: Vec<_> = [("0", "a"), ("1", "b"), ("2", "a"), ("3", "a")]
            .map(|(name, machine)| recording(job.path(), name, machine))
            .into();
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(|| {
                    share(rank);
                    share(rank);
                });
            }
        });
        let counts: Vec<u64> = ranks
            .iter()
            .map(|rank| links(&rank.join(MACHINE_FILE)))
            .collect();
        assert_eq!(counts, [4, 2, 4, 4]);
        for (rank, machine) in ranks.iter().zip(["a", "b", "a", "a"]) {
            assert_eq!(
                fs::read_to_string(rank.join(MACHINE_FILE)).unwrap(),
                machine
            );
            assert_eq!(fs::read_dir(rank).unwrap().count(), 1);
        }
    }

    #[test]
    fn nothing_is_put_where_others_may_write() {
        let job = tempfile::tempdir().unwrap();
        let rank = recording(job.path(), "0", "a");
        fs::set_permissions(job.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        share(&rank);
        assert_eq!(fs::read_dir(job.path()).unwrap().count(), 1);
        assert!(!is_of_job(Path::new("")) && !is_of_job(Path::new(".")));
    }

    #[test]
    fn other_contents_under_the_same_checksum_are_not_taken() {
        let job = tempfile::tempdir().unwrap();
        let rank = recording(job.path(), "0", "a");
        let store = job.path().join(SHARED_FOLDER);
        fs::create_dir(&store).unwrap();
        let name = format!("{:08x}-1-{MACHINE_FILE}", crc32fast::hash(b"a"));
        fs::write(store.join(&name), "b").unwrap();
        share(&rank);
        assert_eq!(fs::read_to_string(rank.join(MACHINE_FILE)).unwrap(), "a");
        // A symbolic link in the store is not followed, either.
        fs::remove_file(store.join(&name)).unwrap();
        fs::write(job.path().join("elsewhere"), "a").unwrap();
        std::os::unix::fs::symlink(job.path().join("elsewhere"), store.join(&name)).unwrap();
        share(&rank);
        assert_eq!(links(&rank.join(MACHINE_FILE)), 1);
    }
}
