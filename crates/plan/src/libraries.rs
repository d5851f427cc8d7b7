//! Finds libraries as the dynamic loader does (ld.so(8)): by the program's own search path, `LD_LIBRARY_PATH`, the
//! cache that ldconfig writes, and the default folders. The loader itself is not run, as it would run code of the
//! program's choosing.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nearpage_files::{path_from_text, path_to_text};

use crate::module::ModuleImage;

/// Search paths for commands and libraries.
#[derive(Clone, Debug, Default)]
pub struct SearchPaths {
    /// `PATH`.
    pub commands: OsString,
    /// `LD_LIBRARY_PATH`.
    pub libraries: OsString,
    /// The loader's cache, `/etc/ld.so.cache`.
    pub cache: PathBuf,
}

impl SearchPaths {
    /// Search paths of this process.
    pub fn from_environment() -> Self {
        Self {
            commands: env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            libraries: env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
            cache: PathBuf::from("/etc/ld.so.cache"),
        }
    }
}

/// The libraries that a program loads at start, breadth first as the loader does. A library that isn't found is left
/// out: the loader will report it.
pub(crate) fn load_needed(program: &ModuleImage, search: &SearchPaths) -> Vec<ModuleImage> {
    let cache = fs::read(&search.cache)
        .map(|bytes| parse_cache(&bytes))
        .unwrap_or_default();
    let mut loaded: Vec<ModuleImage> = Vec::new();
    let mut asked: Vec<String> = Vec::new();
    let mut next = 0;
    loop {
        let module = match next {
            0 => program,
            _ => match loaded.get(next - 1) {
                Some(module) => module,
                None => return loaded,
            },
        };
        let mut found = Vec::new();
        for name in &module.needed.libraries {
            if asked.contains(name) {
                continue;
            }
            asked.push(name.clone());
            let fits = |path: PathBuf| {
                let library = ModuleImage::load(&path).ok()?;
                (library.processor == program.processor).then_some(library)
            };
            found.extend(
                candidates(name, module, program, search, &cache)
                    .into_iter()
                    .find_map(fits),
            );
        }
        loaded.extend(found);
        next += 1;
    }
}

/// Files to try for a needed library, in order.
fn candidates(
    name: &str,
    module: &ModuleImage,
    program: &ModuleImage,
    search: &SearchPaths,
    cache: &[(String, PathBuf)],
) -> Vec<PathBuf> {
    if name.contains('/') {
        return vec![path_from_text(name).into_owned()];
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    if module.needed.runpath.is_none() {
        for one in [module, program] {
            folders.extend(expand(one.needed.rpath.as_deref().unwrap_or_default(), one));
        }
    }
    // An empty entry is the working folder.
    folders.extend(env::split_paths(&search.libraries).filter(|_| !search.libraries.is_empty()));
    folders.extend(expand(
        module.needed.runpath.as_deref().unwrap_or_default(),
        module,
    ));
    let mut files: Vec<PathBuf> = folders
        .iter()
        .map(|folder| folder.join(path_from_text(name)))
        .collect();
    files.extend(
        cache
            .iter()
            .filter(|(cached, _)| cached == name)
            .map(|(_, path)| path.clone()),
    );
    let defaults = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
    files.extend(
        defaults
            .iter()
            .map(|folder| Path::new(folder).join(path_from_text(name))),
    );
    files
}

/// The folders of an RPATH, with `$ORIGIN` as the module's own.
fn expand(path: &str, module: &ModuleImage) -> Vec<PathBuf> {
    let origin = module.path.parent().unwrap_or(Path::new("/"));
    let origin = path_to_text(origin.as_os_str().as_bytes());
    path.split(':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| {
            let folder = folder.replace("${ORIGIN}", &origin);
            path_from_text(&folder.replace("$ORIGIN", &origin)).into_owned()
        })
        .collect()
}

/// Names and paths of the loader's cache, format `glibc-ld.so.cache1.1` (glibc's
/// `sysdeps/generic/dl-cache.h`): magic (20 bytes), entries (u32), bytes of strings (u32), 20 bytes
/// more; then entries of flags (u32), name and path (u32, offsets from the magic), OS version (u32)
/// and hardware capabilities (u64). Older files have another table in front.
pub(crate) fn parse_cache(bytes: &[u8]) -> Vec<(String, PathBuf)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    /// PATH_MAX of Linux.
    const PATH_BYTES_MAX: usize = 4096;
    let Some(start) = bytes
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)
    else {
        return Vec::new();
    };
    let bytes = &bytes[start..];
    let word = |at: usize| {
        let word = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(word.try_into().ok()?) as usize)
    };
    let text = |at: usize| {
        // Bounded, so that a damaged cache whose entries share one long text isn't multiplied.
        let text = bytes.get(at..)?;
        let text = &text[..text.len().min(PATH_BYTES_MAX)];
        let end = text.iter().position(|&byte| byte == 0)?;
        Some(path_to_text(&text[..end]))
    };
    let count = word(MAGIC.len()).unwrap_or(0).min(bytes.len() / ENTRY);
    (0..count)
        .map_while(|entry| {
            let at = HEADER + entry * ENTRY;
            let plain = word(at + 16)? == 0 && word(at + 20)? == 0;
            Some((plain, text(word(at + 4)?)?, text(word(at + 8)?)?))
        })
        // Only the loader knows which variants for newer processors fit.
        .filter(|(plain, ..)| *plain)
        .map(|(_, name, path)| (name, path_from_text(&path).into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cache(names: &[(&str, &str)], count: u32) -> Vec<u8> {
        let mut bytes = b"ld.so-1.7.0\0\0\0\0\0".to_vec();
        let start = bytes.len();
        bytes.extend(b"glibc-ld.so.cache1.1");
        bytes.extend(count.to_le_bytes());
        bytes.resize(start + 48, 0);
        let mut strings = Vec::new();
        let base = 48 + 24 * names.len();
        for (name, path) in names {
            let mut entry = [0u8; 24];
            for (at, text) in [(4, name), (8, path)] {
                entry[at..at + 4].copy_from_slice(&((base + strings.len()) as u32).to_le_bytes());
                strings.extend(text.as_bytes());
                strings.push(0);
            }
            bytes.extend(entry);
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn the_cache_is_read() {
        let entries = [
            ("libm.so.6", "/lib/libm.so.6"),
            ("libz.so.1", "/lib/libz.so.1"),
        ];
        let read = parse_cache(&cache(&entries, 2));
        assert_eq!(read.len(), 2);
        assert_eq!(
            read[1],
            ("libz.so.1".to_owned(), PathBuf::from("/lib/libz.so.1"))
        );
        assert_eq!(parse_cache(b"something else"), []);
    }

    #[test]
    fn entries_that_share_one_endless_text_are_not_multiplied() {
        let long = "x".repeat(5000);
        let bytes = cache(&[("libm.so.6", "/lib/libm.so.6"), ("a", &long)], 2);
        assert_eq!(parse_cache(&bytes).len(), 1);
    }

    proptest! {
        #[test]
        fn a_damaged_cache_never_panics(count: u32, cut in 0usize..200, at in 0usize..200, byte: u8) {
            let mut bytes = cache(&[("libm.so.6", "/lib/libm.so.6"), ("a", "b")], count);
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut);
            let _ = parse_cache(&bytes);
        }
    }
}
