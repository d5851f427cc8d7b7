//! Port and token of a page, kept for the user so that addresses of the page stay valid after a restart.

use std::fs::{self, DirBuilder, File};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustc_hash::FxHasher;

use crate::Error;

/// Digits of a token: 128 random bits.
const TOKEN_DIGITS: usize = 32;
/// Entries that were unused for this time are deleted.
const KEPT_FOR: Duration = Duration::from_hours(24 * 90);

/// Port on which a page was last served, and the token that gives access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// 0: no port yet.
    pub port: u16,
    pub token: String,
    /// File that keeps port and token; `None`: they are not kept.
    file: Option<PathBuf>,
}

impl Access {
    /// Access to the page that shows these paths: as an earlier page kept it in `folder`, else a new one.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn of(paths: &[&Path], folder: Option<&Path>) -> Result<Self, Error> {
        let file = folder.map(|folder| folder.join(name(paths)));
        let kept = file.as_deref().and_then(read);
        let (port, token) = match kept {
            Some(kept) => kept,
            None => (0, token()?),
        };
        Ok(Self { port, token, file })
    }

    /// Keeps the token and `port` for the next page of these paths, and deletes old entries.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep(&self, port: u16) -> io::Result<()> {
        let Some((file, folder)) = self
            .file
            .as_deref()
            .and_then(|file| Some((file, file.parent()?)))
        else {
            return Ok(());
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let text = format!("{port} {}\n", self.token);
        nearpage_files::create(file)?.write_all(text.as_bytes())?;
        let now = SystemTime::now();
        for entry in fs::read_dir(folder)?.flatten() {
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            let age = changed
                .ok()
                .and_then(|changed| now.duration_since(changed).ok());
            if age.is_some_and(|age| age > KEPT_FOR) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Name of the file that keeps the access for these paths.
fn name(paths: &[&Path]) -> String {
    let mut hash = FxHasher::default();
    for path in paths {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        hash.write(path.as_os_str().as_encoded_bytes());
        hash.write(&[0]);
    }
    format!("{:016x}", hash.finish())
}

/// Port and token from a file; `None` if other users can read or write the file.
fn read(path: &Path) -> Option<(u16, String)> {
    let file = nearpage_files::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if metadata.uid() != nearpage_files::own_user() || metadata.mode() & 0o077 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    let (port, token) = text.trim_end().split_once(' ')?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_token = token.len() == TOKEN_DIGITS && token.bytes().all(is_digit);
    Some((port.parse().ok()?, is_token.then(|| token.to_owned())?))
}

fn token() -> Result<String, Error> {
    let mut bytes = [0; TOKEN_DIGITS / 2];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_kept_for_its_user_alone_and_for_its_paths() {
        let state = tempfile::tempdir().expect("a folder");
        let folder = state.path().join("nearpage/view");
        let access = |paths: &[&str]| {
            let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
            Access::of(&paths, Some(&folder)).expect("random")
        };
        let first = access(&["a", "b"]);
        assert_eq!((first.token.len(), first.port), (32, 0));
        assert_ne!(
            first.token,
            access(&["a", "b"]).token,
            "it is kept nowhere yet"
        );
        first.keep(4000).expect("written");
        let again = access(&["a", "b"]);
        assert_eq!((&again.token, again.port), (&first.token, 4000));
        assert_ne!(access(&["ab"]).token, first.token);

        let file = first.file.clone().expect("a file");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&folder)), (0o600, 0o700));
        // A file that others could have read or written is ignored.
        for mode in [0o640, 0o602] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mine");
            assert_ne!(access(&["a", "b"]).token, first.token, "{mode:o}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mine");
        for text in [
            "",
            "4000",
            "4000 short",
            "x 0123456789abcdef0123456789abcdef",
        ] {
            fs::write(&file, text).expect("mine");
            assert_ne!(access(&["a", "b"]).token, first.token, "{text}");
        }
        // Without a home folder, nothing is kept.
        let nowhere = Access::of(&[Path::new("a")], None).expect("random");
        nowhere.keep(1).expect("nothing to do");
    }
}
