//! The two libraries that nearpage loads into other programs: the preload library into the command, and the tracer into
//! QEMU.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nearpage_files::TemporaryFolder;
use nearpage_plan::ProgramImage;
use nearpage_recording::NoLog;
use nearpage_recording::elf::ElfFile;

use crate::error::{Error, IoContext, NO_FOLDER};

const LIBRARY: &str = "libnearpage_preload.so";
const PLUGIN: &str = "libnearpage_tracer.so";

/// Remedy for a missing preload library, which sampling inside a program needs.
pub const PRELOAD_MISSING: &str =
    "it needs the preload library, which is not there: install it beside nearpage";

/// Why the preload library cannot be loaded into this program; `None` if it can.
pub(crate) fn kept_out(image: &ProgramImage) -> Option<NoLog> {
    NoLog::of_file(&ElfFile::open(&image.program.path).ok()?)
}

/// The preload library, found beside this executable or in `../lib`. Its path is fit for LD_PRELOAD.
#[derive(Debug)]
pub struct PreloadLibrary {
    path: PathBuf,
    /// Folder of a link with a plain name, if the library's own path has a space, colon or comma. The folder stays while
    /// programs go on that the command leaves running: the loader of a program that they execute would complain.
    _link_folder: Option<TemporaryFolder>,
}

impl PreloadLibrary {
    /// Finds the library. `NEARPAGE_PRELOAD_LIBRARY` overrides where to look.
    ///
    /// # Errors
    /// The library was not found, or no link to it can be made.
    pub fn find() -> Result<Self, Error> {
        let candidates = candidates("NEARPAGE_PRELOAD_LIBRARY", LIBRARY)?;
        Self::at(first_existing(candidates, "the preload library")?)
    }

    /// The library at `path`, through a link if LD_PRELOAD can't hold the path.
    fn at(path: PathBuf) -> Result<Self, Error> {
        if !path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|byte| b" :,".contains(byte))
        {
            return Ok(Self {
                path,
                _link_folder: None,
            });
        }
        // The loader splits LD_PRELOAD at spaces and colons, and offers no quotes. QEMU splits the variable at commas.
        let folder = TemporaryFolder::new("library")
            .context(NO_FOLDER)?
            .named_to_programs();
        let link = folder.path().join(LIBRARY);
        std::os::unix::fs::symlink(&path, &link)
            .at(&link, "can't make a link to the preload library")?;
        Ok(Self {
            path: link,
            _link_folder: Some(folder),
        })
    }

    /// Value of `LD_PRELOAD` for a command: this library, then the value with which nearpage was started.
    pub fn ld_preload(&self) -> OsString {
        self.before(std::env::var_os("LD_PRELOAD").as_deref())
    }

    /// The library's path, followed by the paths in `others`.
    fn before(&self, others: Option<&OsStr>) -> OsString {
        let mut value = self.path.clone().into_os_string();
        let own = self.path.as_os_str().as_bytes();
        let others = others.unwrap_or_default().as_bytes();
        for other in others.split(|byte| b" :".contains(byte)) {
            if !other.is_empty() && other != own {
                value.push(":");
                value.push(OsStr::from_bytes(other));
            }
        }
        value
    }
}

/// The tracer, which QEMU loads.
#[derive(Debug)]
pub struct TracerPlugin {
    /// Path of the plugin.
    pub path: PathBuf,
}

impl TracerPlugin {
    /// Finds the plugin. `NEARPAGE_TRACER_PLUGIN` overrides where to look.
    ///
    /// # Errors
    /// The plugin was not found.
    pub fn find() -> Result<Self, Error> {
        let candidates = candidates("NEARPAGE_TRACER_PLUGIN", PLUGIN)?;
        let path = first_existing(candidates, "the tracer")?;
        Ok(Self { path })
    }
}

/// Paths at which a library of nearpage may be; at least one path.
fn candidates(variable: &str, library: &str) -> Result<Vec<PathBuf>, Error> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(vec![PathBuf::from(path)]);
    }
    let executable = std::env::current_exe().context("can't find nearpage's own executable")?;
    let folder = executable.parent().unwrap_or(Path::new("/"));
    Ok(["", "../lib/nearpage", "../lib"]
        .iter()
        .map(|place| folder.join(place).join(library))
        .collect())
}

/// The first existing path; `library` names the library in the error.
fn first_existing(candidates: Vec<PathBuf>, library: &'static str) -> Result<PathBuf, Error> {
    let found = candidates.iter().find_map(|path| path.canonicalize().ok());
    found.ok_or_else(|| Error::LibraryNotFound {
        path: candidates.into_iter().next().unwrap_or_default(),
        library,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(path: &str) -> PreloadLibrary {
        PreloadLibrary {
            path: path.into(),
            _link_folder: None,
        }
    }

    #[test]
    fn the_library_comes_before_what_is_preloaded_already() {
        let library = library("/lib/libnearpage_preload.so");
        let own = "/lib/libnearpage_preload.so";
        assert_eq!(library.before(None), own);
        let others = OsStr::new("/a.so /b.so::/lib/libnearpage_preload.so");
        let expected = format!("{own}:/a.so:/b.so");
        assert_eq!(library.before(Some(others)), *expected);
    }

    #[test]
    fn paths_that_ld_preload_cannot_carry_get_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join(LIBRARY);
        std::fs::write(&plain, "").unwrap();
        let found = PreloadLibrary::at(plain.clone()).unwrap();
        assert_eq!(found.before(None), *plain.as_os_str());

        let spaced = folder.path().join("a b,c:d");
        std::fs::create_dir(&spaced).unwrap();
        let spaced = spaced.join(LIBRARY);
        std::fs::write(&spaced, "").unwrap();
        let linked = PreloadLibrary::at(spaced.clone()).unwrap();
        let link = linked.path.clone();
        assert_eq!(std::fs::read_link(&link).unwrap(), spaced);
        assert!(!link.to_string_lossy().contains([' ', ',', ':']));
        drop(linked);
        assert!(!link.exists());
    }

    #[test]
    fn a_missing_library_is_named_with_the_first_place() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["none", "lib"].map(|name| folder.path().join(name));
        let error = first_existing(places.to_vec(), "the tracer").unwrap_err();
        let expected = format!(
            "{}: not found; the tracer is installed beside the nearpage executable or in ../lib (`cargo build` builds \
             both)",
            places[0].display()
        );
        assert_eq!(error.to_string(), expected);
        std::fs::write(&places[1], "").unwrap();
        let found = first_existing(places.to_vec(), "the tracer").unwrap();
        assert_eq!(found, places[1].canonicalize().unwrap());
    }
}
