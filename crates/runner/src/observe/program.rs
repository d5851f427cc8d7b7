use std::ffi::OsString;
use std::fs;
use std::path::Path;

use nearpage_files::memory_folder;
use nearpage_plan::{ProgramImage, SearchPaths, resolve_command};
use nearpage_recording::NoLog;
use nearpage_recording::elf::ElfFile;
use nearpage_sampler::Target;

use crate::error::Error;
use crate::libraries::{PRELOAD_MISSING, PreloadLibrary, kept_out};

/// The recorded program, for the recording's metadata.
#[derive(Debug, Default)]
pub(super) struct ObservedProgram {
    /// Command and arguments, if they are known.
    pub command: Vec<String>,
    /// Build-id of the executable.
    pub build_id: String,
    /// Description of the running processes; `None`: a command is started.
    pub attached_to: Option<String>,
    /// Preload library for a command.
    pub library: Option<PreloadLibrary>,
    /// Why the preload library cannot be inside, with a remedy; `None`: it can.
    pub without_library: Option<String>,
}

impl ObservedProgram {
    /// Describes a target. `notes` gets messages about a command.
    pub(super) fn of(target: &Target, notes: &mut Vec<String>) -> Result<Self, Error> {
        Ok(match target {
            Target::Command(command) => Self::started(command, notes)?,
            Target::Processes(pids) => {
                Self::running(pids.first().copied().unwrap_or_default(), pids)
            }
            Target::Cgroup(path) => Self::attached(format!("cgroup {}", path.display())),
            Target::All => Self::attached("all processes".to_owned()),
        })
    }

    /// A target that runs already, described by `name`.
    fn attached(name: String) -> Self {
        Self {
            attached_to: Some(name),
            without_library: Some(
                "it needs the preload library inside from the start: not where something runs already"
                    .to_owned(),
            ),
            ..Self::default()
        }
    }

    /// Running processes. Command and build-id are those of process `first`.
    fn running(first: u32, pids: &[u32]) -> Self {
        let listed: Vec<String> = pids.iter().map(u32::to_string).collect();
        let noun = match pids {
            [_] => "process",
            _ => "processes",
        };
        let folder = memory_folder(Path::new("/proc"), first);
        let words = fs::read(folder.join("cmdline")).unwrap_or_default();
        let words = words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty());
        let file = ElfFile::open(&folder.join("exe")).ok();
        Self {
            command: words
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect(),
            build_id: file.map(|file| file.build_id()).unwrap_or_default(),
            ..Self::attached(format!("{noun} {}", listed.join(", ")))
        }
    }

    /// A command that is about to be started.
    fn started(command: &[OsString], notes: &mut Vec<String>) -> Result<Self, Error> {
        let search = SearchPaths::from_environment();
        let program = command.first().ok_or(Error::NoCommand)?;
        resolve_command(program, &search)?;
        let image = ProgramImage::load(program, &search).ok();
        let library = match PreloadLibrary::find() {
            Ok(library) => Some(library),
            Err(error) => {
                notes.push(format!("{error}: recorded without heap objects"));
                None
            }
        };
        let name = Path::new(program).display();
        let kept_out = image.as_ref().and_then(kept_out);
        if let Some(reason) = kept_out {
            notes.push(format!(
                "the heap objects of {name} are not known: {reason}"
            ));
        }
        let without_library = match (kept_out, &library) {
            (Some(reason), _) => Some(format!("it needs the preload library in {name}: {reason}")),
            (None, None) => Some(PRELOAD_MISSING.to_owned()),
            (None, Some(_)) => None,
        };
        // Programs that a static program executes can load the library. A program with a sanitizer does not start with
        // the library.
        let library = library.filter(|_| !matches!(kept_out, Some(NoLog::Sanitizer(_))));
        let words = command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        Ok(Self {
            command: words.collect(),
            build_id: image.map_or_else(String::new, |image| image.program.build_id),
            attached_to: None,
            library,
            without_library,
        })
    }
}
