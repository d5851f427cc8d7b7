//! A tree of files in the layout of `/sys` and `/proc`: of the running system, or gathered on another machine into a
//! folder or an archive.
//!
//! A gathered tree is untrusted. Its links are resolved here, name by name, and never lead out of the tree; an archive
//! stays in memory ([`archive`]).

mod archive;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{Error, List, ListError, Number};
use archive::Files;

/// Maximum number of bytes of a file; `/proc/cpuinfo` of a thousand CPUs has some two million.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of links on the way to a file, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Maximum length of a path (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;

/// Location of the files.
enum Store {
    /// The running system, with the kernel's own files and links.
    System(PathBuf),
    /// A folder with gathered files.
    Folder(PathBuf),
    /// An archive of such a folder.
    Archive(Files),
}

/// Kind of a path's target; the last link is not followed.
enum Kind {
    Folder,
    File,
    Link(String),
}

/// A tree whose paths begin with `sys/` or `proc/`.
pub(crate) struct Tree {
    store: Store,
    /// Prefix of `sys/` and `proc/` in the store: empty, or ending in a slash.
    root: String,
    /// Is the store `/sys` itself, without `proc`?
    is_sys: bool,
    /// Prefix of paths in messages.
    origin: PathBuf,
    /// Number of files and folders that were read: a measure of work that does not depend on the machine.
    reads: Cell<u64>,
    /// Files and folders of a running system that were read, for gathering them.
    seen: RefCell<Seen>,
}

/// Paths that were found, with the content of files.
pub(crate) type Seen = BTreeMap<String, Option<Vec<u8>>>;

impl Tree {
    /// The running system; `sys_root` is `/sys` outside of tests.
    pub fn system(sys_root: &Path) -> Self {
        Self {
            store: Store::System(sys_root.to_owned()),
            root: String::new(),
            is_sys: true,
            origin: sys_root.to_owned(),
            reads: Cell::new(0),
            seen: RefCell::default(),
        }
    }

    /// A gathered tree: a folder, or an archive of one.
    pub fn gathered(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        if fs::metadata(path).map_err(failed)?.is_dir() {
            return Self::rooted(Store::Folder(path.to_owned()), path);
        }
        let bytes = nearpage_files::read(path, archive::ARCHIVE_BYTES_MAX).map_err(failed)?;
        Self::archived(&bytes, path)
    }

    /// A gathered tree from an archive's bytes.
    pub fn archived(bytes: &[u8], origin: &Path) -> Result<Self, Error> {
        let files = archive::unpack(bytes).map_err(|problem| Error::Tree {
            path: origin.to_owned(),
            problem,
        })?;
        Self::rooted(Store::Archive(files), origin)
    }

    /// Finds `sys` at the top of the store or in a folder there. A store with `devices/system` is `sys` itself.
    fn rooted(store: Store, origin: &Path) -> Result<Self, Error> {
        let mut tree = Self {
            store,
            root: String::new(),
            is_sys: false,
            origin: origin.to_owned(),
            reads: Cell::new(0),
            seen: RefCell::default(),
        };
        if tree.exists("sys/devices/system") {
            return Ok(tree);
        }
        tree.is_sys = true;
        if tree.exists("sys/devices/system") {
            return Ok(tree);
        }
        tree.is_sys = false;
        let mut roots = Vec::new();
        // Names with control characters would garble messages.
        for name in tree
            .names("")?
            .into_iter()
            .filter(|name| !name.contains(char::is_control))
        {
            tree.root = format!("{name}/");
            if tree.exists("sys/devices/system") {
                roots.push(name);
            }
        }
        let problem = match roots.as_slice() {
            [one] => {
                tree.root = format!("{one}/");
                return Ok(tree);
            }
            [] => "there is no `sys/devices/system` at its top or one folder down; gather `/sys` and `/proc` of a machine, \
                   for example with hwloc-gather-topology"
                .to_owned(),
            several => format!("it has the trees of {} machines; name the folder of one", several.len()),
        };
        Err(Error::Tree {
            path: origin.to_owned(),
            problem,
        })
    }

    /// Is the tree the running system's?
    pub fn is_system(&self) -> bool {
        matches!(self.store, Store::System(_))
    }

    /// Number of files and folders that were read so far.
    #[cfg(test)]
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Name of the path in messages.
    pub fn display(&self, path: &str) -> PathBuf {
        match self.stored(path) {
            Some(stored) => self.origin.join(stored),
            None => self.origin.join(path),
        }
    }

    /// Does the path exist?
    pub fn exists(&self, path: &str) -> bool {
        if let Store::System(root) = &self.store {
            let stored = self.stored(path).map(|stored| root.join(stored));
            let exists = stored.as_ref().is_some_and(|stored| stored.exists());
            if let Some(stored) = stored.filter(|_| exists) {
                let content = stored.is_file().then(Vec::new);
                self.seen
                    .borrow_mut()
                    .entry(path.to_owned())
                    .or_insert(content);
            }
            return exists;
        }
        self.resolved(path).is_some()
    }

    /// A file's text without surrounding white space and NULs, with which some gathering tools pad files; `None` if the
    /// file does not exist.
    pub fn read(&self, path: &str) -> Result<Option<String>, Error> {
        self.reads.set(self.reads.get() + 1);
        let failed = |source| Error::Read {
            path: self.display(path),
            source,
        };
        let Some(bytes) = self.bytes(path).map_err(failed)? else {
            return Ok(None);
        };
        if self.is_system() {
            self.seen
                .borrow_mut()
                .insert(path.to_owned(), Some(bytes.clone()));
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0');
        Ok(Some(text.to_owned()))
    }

    fn bytes(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let read = match &self.store {
            Store::System(root) => match self.stored(path) {
                Some(stored) => fs::read(root.join(stored)),
                None => return Ok(None),
            },
            Store::Folder(root) => match self.resolved(path) {
                Some(stored) if root.join(&stored).is_dir() => return Ok(None),
                Some(stored) => nearpage_files::read(&root.join(stored), FILE_BYTES_MAX),
                None => return Ok(None),
            },
            Store::Archive(files) => {
                return Ok(self
                    .resolved(path)
                    .and_then(|stored| files.read(&stored))
                    .map(<[u8]>::to_vec));
            }
        };
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            // The attributes of a CPU that goes offline disappear, or fail as no device.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Names in a folder, in order; empty if the folder does not exist.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, Error> {
        self.reads.set(self.reads.get() + 1);
        let of_folder = |path: &Path| {
            let entries = match fs::read_dir(path) {
                Ok(entries) => entries,
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            };
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            names.collect::<io::Result<Vec<String>>>()
        };
        let names = match &self.store {
            Store::System(root) => match self.stored(folder) {
                Some(stored) => of_folder(&root.join(stored)),
                None => Ok(Vec::new()),
            },
            Store::Folder(root) => match self.resolved(folder) {
                Some(stored) => of_folder(&root.join(stored)),
                None => Ok(Vec::new()),
            },
            Store::Archive(files) => {
                let stored = self.resolved(folder);
                Ok(stored.map_or(Vec::new(), |stored| files.names(&stored).to_vec()))
            }
        };
        let mut names = names.map_err(|source| Error::Read {
            path: self.display(folder),
            source,
        })?;
        names.sort();
        if self.is_system() {
            let mut seen = self.seen.borrow_mut();
            for name in &names {
                seen.entry(format!("{folder}/{name}")).or_insert(None);
            }
        }
        Ok(names)
    }

    /// Files and folders of a running system that were read so far.
    pub fn seen(self) -> Seen {
        self.seen.into_inner()
    }

    /// Members of a folder that are a word and a number, such as `node0`, `cpu3` or `index2`, by number.
    pub fn numbered(&self, folder: &str, word: &str) -> Result<Vec<(u32, String)>, Error> {
        let names = self.names(folder)?;
        let mut found: Vec<(u32, String)> = names
            .iter()
            .filter_map(|name| {
                let digits = name.strip_prefix(word)?;
                let number: u32 = digits.parse().ok()?;
                // The kernel writes no `cpu07`, which would be another folder of the same number.
                (digits == number.to_string()).then(|| (number, format!("{folder}/{name}")))
            })
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// A whole number; `None` if the file does not exist.
    pub fn number<N: std::str::FromStr>(&self, path: &str) -> Result<Option<N>, Error> {
        let Some(text) = self.read(path)? else {
            return Ok(None);
        };
        text.parse()
            .map(Some)
            .map_err(|_| self.unexpected(path, "a number", &text))
    }

    /// A list such as `0,2-3`; `None` if the file does not exist.
    pub fn list<T: Number>(&self, path: &str) -> Result<Option<List<T>>, Error> {
        let Some(text) = self.read(path)? else {
            return Ok(None);
        };
        let list: Result<List<T>, ListError> = text.parse();
        list.map(Some)
            .map_err(|_| self.unexpected(path, "a list such as `0,2-3`", &text))
    }

    /// A set such as `00000000,0000000f`: words of 32 bits, the most significant first.
    pub fn map<T: Number>(&self, path: &str) -> Result<Option<List<T>>, Error> {
        let Some(text) = self.read(path)? else {
            return Ok(None);
        };
        let members = members_of_map(&text);
        members
            .map(Some)
            .ok_or_else(|| self.unexpected(path, "a set such as `00000000,0000000f`", &text))
    }

    /// The list in one file or, if that file does not exist, the set in another.
    pub fn list_or_map<T: Number>(&self, list: &str, map: &str) -> Result<Option<List<T>>, Error> {
        match self.list(list)? {
            Some(list) => Ok(Some(list)),
            None => self.map(map),
        }
    }

    /// Error about a file with unexpected content.
    pub fn unexpected(&self, path: &str, expected: &'static str, found: &str) -> Error {
        // Messages have one line, whatever the file contains.
        let found = found.trim().chars().take(80);
        let found = found.map(|letter| if letter.is_control() { ' ' } else { letter });
        Error::Sysfs {
            path: self.display(path),
            expected,
            found: found.collect(),
        }
    }

    /// The path in the store; `None` if the store has no such part.
    fn stored(&self, path: &str) -> Option<String> {
        if self.is_sys {
            let inside = path.strip_prefix("sys")?;
            return Some(inside.trim_start_matches('/').to_owned());
        }
        Some(format!("{}{path}", self.root))
    }

    /// The path in the store after following every link inside of the store; `None` if it does not exist.
    fn resolved(&self, path: &str) -> Option<String> {
        let stored = self.stored(path)?;
        let mut left: Vec<String> = parts(&stored);
        left.reverse();
        let mut way: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                way.pop()?;
                continue;
            }
            way.push(part);
            let here = way.join("/");
            if here.len() > PATH_BYTES_MAX {
                return None;
            }
            match self.kind(&here)? {
                Kind::Folder => {}
                Kind::File if left.is_empty() => {}
                Kind::File => return None,
                Kind::Link(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return None;
                    }
                    way.pop();
                    let target = match target.strip_prefix('/') {
                        Some(absolute) => {
                            way.clear();
                            self.stored(absolute)?
                        }
                        None => target,
                    };
                    left.extend(parts(&target).into_iter().rev());
                }
            }
        }
        Some(way.join("/"))
    }

    fn kind(&self, stored: &str) -> Option<Kind> {
        match &self.store {
            Store::Archive(files) => files.kind(stored),
            Store::System(root) | Store::Folder(root) => {
                let path = root.join(stored);
                let kind = fs::symlink_metadata(&path).ok()?.file_type();
                if kind.is_symlink() {
                    let target = fs::read_link(&path).ok()?;
                    return Some(Kind::Link(target.to_str()?.to_owned()));
                }
                Some(if kind.is_dir() {
                    Kind::Folder
                } else {
                    Kind::File
                })
            }
        }
    }
}

/// Names in a path, without empty ones and `.`.
fn parts(path: &str) -> Vec<String> {
    let names = path
        .split('/')
        .filter(|name| !name.is_empty() && *name != ".");
    names.map(str::to_owned).collect()
}

fn members_of_map<T: Number>(text: &str) -> Option<List<T>> {
    const WORD_BITS: u32 = 32;
    let mut members = Vec::new();
    for (at, word) in text.rsplit(',').enumerate() {
        let bits = u32::from_str_radix(word.trim().trim_start_matches("0x"), 16).ok()?;
        for bit in (0..WORD_BITS).filter(|bit| bits >> bit & 1 == 1) {
            let number = u32::try_from(at)
                .ok()?
                .checked_mul(WORD_BITS)?
                .checked_add(bit)?;
            if number > T::MAX {
                return None;
            }
            members.push(T::from_number(number));
        }
    }
    Some(members.into_iter().collect())
}

#[cfg(test)]
pub(crate) mod tests;
