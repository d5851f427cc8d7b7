//! What a command needs in its environment to be observed or placed: the preload library and its
//! variables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nearpage_sampler::Target;

const LIBRARY: &str = "libnearpage_preload.so";

/// The preload library, found beside this executable or in `../lib`, under a path that LD_PRELOAD
/// can carry.
pub struct PreloadLibrary {
    path: PathBuf,
    /// A link with a plain name, where the library's own path has a space or colon in it.
    link_directory: Option<PathBuf>,
}

impl PreloadLibrary {
    /// Finds it. `NEARPAGE_PRELOAD_LIBRARY` overrides where to look.
    pub fn find() -> anyhow::Result<Self> {
        let candidates = candidates("NEARPAGE_PRELOAD_LIBRARY", LIBRARY)?;
        let Some(path) = candidates.iter().find_map(|path| path.canonicalize().ok()) else {
            bail!(
                "{}: not found; the preload library is installed beside the nearpage executable or in ../lib \
                 (`cargo build` builds both)",
                candidates[0].display()
            );
        };
        if !path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|byte| b" :,".contains(byte))
        {
            return Ok(Self {
                path,
                link_directory: None,
            });
        }
        // The loader splits LD_PRELOAD at spaces and colons and has no way to quote them; QEMU splits
        // what it passes on at commas.
        let directory = std::env::temp_dir().join(format!("nearpage-{}", std::process::id()));
        let link = directory.join(LIBRARY);
        std::fs::create_dir(&directory)
            .and_then(|()| std::os::unix::fs::symlink(&path, &link))
            .with_context(|| {
                format!(
                    "{}: can't make a link to the preload library",
                    directory.display()
                )
            })?;
        Ok(Self {
            path: link,
            link_directory: Some(directory),
        })
    }

    /// `LD_PRELOAD` with this library first and what was there already.
    pub fn ld_preload(&self) -> OsString {
        let mut value = self.path.clone().into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            let mine =
                |entry: &&[u8]| !entry.is_empty() && *entry != self.path.as_os_str().as_bytes();
            for other in others
                .as_bytes()
                .split(|byte| b" :".contains(byte))
                .filter(mine)
            {
                value.push(":");
                value.push(OsStr::from_bytes(other));
            }
        }
        value
    }
}

impl Drop for PreloadLibrary {
    fn drop(&mut self) {
        if let Some(directory) = &self.link_directory {
            // Best effort: what stays behind is one link in the temporary folder.
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// The tracer, which QEMU loads: found as the preload library is.
pub struct TracerPlugin {
    pub path: PathBuf,
}

const PLUGIN: &str = "libnearpage_tracer.so";

impl TracerPlugin {
    /// Finds it. `NEARPAGE_TRACER_PLUGIN` overrides where to look.
    pub fn find() -> anyhow::Result<Self> {
        let candidates = candidates("NEARPAGE_TRACER_PLUGIN", PLUGIN)?;
        match candidates.iter().find_map(|path| path.canonicalize().ok()) {
            Some(path) => Ok(Self { path }),
            None => bail!(
                "{}: not found; the tracer is installed beside the nearpage executable or in ../lib \
                 (`cargo build` builds both)",
                candidates[0].display()
            ),
        }
    }
}

/// Where a library of ours may be; at least one place.
fn candidates(variable: &str, library: &str) -> anyhow::Result<Vec<PathBuf>> {
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

/// What a recording of the target is called.
pub fn target_name(target: &Target) -> OsString {
    let name = match target {
        Target::Command(command) => command
            .first()
            .and_then(|name| Path::new(name).file_name())
            .map(OsStr::to_owned),
        Target::Processes(pids) => pids.first().and_then(|pid| {
            let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
            // A name may contain anything; a folder's may not.
            let name = String::from_utf8_lossy(&name).trim_end().replace('/', "_");
            (!name.is_empty() && !name.starts_with('.')).then(|| name.into())
        }),
        Target::Cgroup(path) => path.file_name().map(OsStr::to_owned),
        Target::All => Some("machine".into()),
    };
    name.unwrap_or_else(|| "recording".into())
}

/// `PROGRAM.nearpage`, or `PROGRAM.2.nearpage` and so on where that exists.
pub fn default_output(program: &OsStr) -> PathBuf {
    let name = |number: u32| {
        let mut name = program.to_owned();
        name.push(if number == 1 {
            ".nearpage".to_owned()
        } else {
            format!(".{number}.nearpage")
        });
        PathBuf::from(name)
    };
    (1..)
        .map(name)
        .find(|path| !path.exists())
        .unwrap_or_else(|| name(1))
}
