//! The program that a command runs, and the libraries it loads, in which rules find their symbols.

use std::cell::OnceCell;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nearpage_files::{bytes_to_text, path_from_text, readable};

use crate::libraries::load_needed;
use crate::module::{ModuleImage, file_name};
use crate::{Error, Program, SearchPaths};

/// Scripts may be run by scripts; the kernel gives up at the same depth.
const SCRIPT_DEPTH_MAX: usize = 4;

/// A program on disk. Its libraries are read at first use.
#[derive(Debug)]
pub struct ProgramImage {
    /// The file that the command names. For a script it differs from the program's own path.
    pub command: PathBuf,
    /// True if the command is a script, so that the program is its interpreter.
    pub is_script: bool,
    /// The program itself.
    pub program: ModuleImage,
    search: SearchPaths,
    libraries: OnceCell<Vec<ModuleImage>>,
}

/// Finds the file that a command names, on `PATH` unless it has a slash.
///
/// # Errors
/// [`Error::CommandNotFound`], or [`Error::NotExecutable`] for a file that can't be run or a script whose interpreter
/// is missing.
pub fn resolve_command(command: &OsStr, search: &SearchPaths) -> Result<PathBuf, Error> {
    let path = find_command(command, search)?;
    // A script that cannot be read may still be run by its interpreter, which the kernel looks for.
    let words = interpreter_words(&path).ok().flatten().unwrap_or_default();
    match words.first() {
        Some(name) if !path_from_text(name).exists() => Err(without_interpreter(&path, name)),
        _ => Ok(path),
    }
}

fn find_command(command: &OsStr, search: &SearchPaths) -> Result<PathBuf, Error> {
    let runnable = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let in_the_way = |path: &Path| match fs::metadata(path) {
        Ok(file) if file.is_dir() => Some("it is a folder"),
        Ok(_) => Some("it is not executable; `chmod +x` makes it so"),
        Err(_) => None,
    };
    let has_slash = command.as_encoded_bytes().contains(&b'/');
    let candidates: Vec<PathBuf> = match has_slash {
        true => vec![PathBuf::from(command)],
        false if command.is_empty() => Vec::new(),
        false => env::split_paths(&search.commands)
            .map(|folder| folder.join(command))
            .collect(),
    };
    if let Some(path) = candidates.iter().find(|path| runnable(path)) {
        return Ok(path.clone());
    }
    let blocked = candidates
        .iter()
        .find_map(|path| Some((path, in_the_way(path)?)));
    if let Some((path, message)) = blocked.filter(|(path, _)| has_slash || path.is_file()) {
        return Err(Error::NotExecutable {
            path: path.clone(),
            message: message.to_owned(),
        });
    }
    let command_text = command.to_string_lossy().into_owned();
    let hint = match has_slash {
        false if !command.is_empty() && runnable(Path::new(command)) => {
            format!(" on PATH; for the one in this folder write ./{command_text}")
        }
        false => " on PATH".to_owned(),
        true => String::new(),
    };
    Err(Error::CommandNotFound {
        command: command_text,
        hint,
    })
}

impl ProgramImage {
    /// Reads the program that `command` names, or the interpreter if the command is a script. Libraries are read at
    /// first use.
    ///
    /// # Errors
    /// The program is not found, not executable, or no 64-bit ELF program.
    pub fn load(command: &OsStr, search: &SearchPaths) -> Result<Self, Error> {
        let command = resolve_command(command, search)?;
        let mut path = command.clone();
        let mut is_script = false;
        for _ in 0..SCRIPT_DEPTH_MAX {
            let Some(interpreter) = interpreter(&path, search)? else {
                break;
            };
            is_script = true;
            path = interpreter;
        }
        Ok(Self {
            command,
            is_script,
            program: ModuleImage::load(&path)?,
            search: search.clone(),
            libraries: OnceCell::new(),
        })
    }

    /// The programs that a command line names: its own, and further programs among its arguments, as launchers have
    /// them (`mpirun -n 4 ./cg 1000`).
    ///
    /// # Errors
    /// Errors of [`ProgramImage::load`] for the command itself.
    pub fn load_command(command: &[OsString], search: &SearchPaths) -> Result<Vec<Self>, Error> {
        let (first, arguments) = match command {
            [first, arguments @ ..] => (first.as_os_str(), arguments),
            [] => (OsStr::new(""), command),
        };
        let mut programs = vec![Self::load(first, search)?];
        for argument in arguments {
            let is_option = argument.as_encoded_bytes().starts_with(b"-");
            let Ok(path) = resolve_command(argument, search) else {
                continue;
            };
            if is_option || !begins_with(&path, b"\x7fELF") {
                continue;
            }
            let Ok(image) = Self::load(argument, search) else {
                continue;
            };
            if programs
                .iter()
                .all(|known| known.program.path != image.program.path)
            {
                programs.push(image);
            }
        }
        Ok(programs)
    }

    /// The libraries that the program loads at start, in the loader's order.
    pub fn libraries(&self) -> &[ModuleImage] {
        self.libraries.get_or_init(|| match self.program.is_static {
            true => Vec::new(),
            false => load_needed(&self.program, &self.search),
        })
    }

    /// The program and its libraries, in the order in which symbols are looked up.
    pub fn modules(&self) -> impl Iterator<Item = &ModuleImage> {
        std::iter::once(&self.program).chain(self.libraries())
    }

    /// Key under which plans for this command are kept: the program's build-id and arguments. A script has its own name
    /// instead of the build-id, since its interpreter also runs other scripts.
    pub fn identity(&self, arguments: &[OsString]) -> Program {
        let arguments = arguments
            .iter()
            .map(|text| text.to_string_lossy().into_owned())
            .collect();
        match self.is_script {
            true => Program {
                executable: file_name(&self.command),
                arguments,
                ..Program::default()
            },
            false => Program {
                executable: self.program.file_name.clone(),
                build_id: self.program.build_id.clone(),
                arguments,
                rank: None,
            },
        }
    }
}

fn begins_with(path: &Path, magic: &[u8; 4]) -> bool {
    let mut start = [0; 4];
    nearpage_files::open(path)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && start == *magic
}

/// The words behind `#!`; none for a file that is no script.
fn interpreter_words(path: &Path) -> io::Result<Option<Vec<String>>> {
    let mut start = Vec::new();
    nearpage_files::open(path)?
        .take(256)
        .read_to_end(&mut start)?;
    let line = start.strip_prefix(b"#!");
    let line = line.map(|line| line.split(|&byte| byte == b'\n').next().unwrap_or(line));
    Ok(line.map(|line| {
        let words = bytes_to_text(line);
        words.split_ascii_whitespace().map(str::to_owned).collect()
    }))
}

/// The program behind `#!`, or behind `env` there; none for a file that is no script.
fn interpreter(path: &Path, search: &SearchPaths) -> Result<Option<PathBuf>, Error> {
    let words = interpreter_words(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let Some(words) = words else {
        return Ok(None);
    };
    let first = words.first().map_or("", String::as_str);
    let name = match Path::new(first).file_name() {
        Some(name) if name == "env" => words[1..]
            .iter()
            .find(|word| !word.starts_with('-') && !word.contains('='))
            .map_or(first, String::as_str),
        _ => first,
    };
    match resolve_command(path_from_text(name).as_os_str(), search) {
        Ok(interpreter) => Ok(Some(interpreter)),
        Err(_) => Err(without_interpreter(path, name)),
    }
}

fn without_interpreter(script: &Path, name: &str) -> Error {
    Error::NotExecutable {
        path: script.to_owned(),
        message: format!("its interpreter `{}` is not found", readable(name)),
    }
}
