//! Looks up functions, files and lines by module and offset.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nearpage_elf::Lines;
use nearpage_files::readable;
use nearpage_wire::is_runtime_module;
use rustc_hash::FxHashMap;

use crate::elf::{ElfFile, Symbol, demangle};
use crate::source_lines::{self, SourceLines};
use crate::{Frame, Module, ModuleId, jit, nameless};

/// Where distributions put separate debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";
/// Folders that are searched by file name for a module whose path was left out of the recording.
const LIBRARY_FOLDERS: [&str; 7] = [
    ".",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/bin",
];

/// Looks up functions and lines. A file is opened at the first look-up in it, its debug information is read only where
/// it is needed, and answers are kept.
#[derive(Default)]
pub struct Symbols {
    modules: Vec<Module>,
    loaded: FxHashMap<ModuleId, Option<ModuleSymbols>>,
    answers: FxHashMap<(ModuleId, u64, bool), Vec<Frame>>,
    /// Actual paths, for recordings that have file names only.
    paths: FxHashMap<(String, String), PathBuf>,
    /// Folder of the recording, which has the names of generated code.
    folder: Option<PathBuf>,
    notes: Vec<String>,
}

/// A function's machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCode {
    /// Demangled name.
    pub function: String,
    /// Virtual address of the first byte, as the file states it.
    pub address: u64,
    /// The code.
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct ModuleSymbols {
    /// Lines of imported code, for which nothing else is known.
    imported: SourceLines,
    /// The file with debug information, if there is one.
    debug: Option<PathBuf>,
    /// Its lines, once they were needed. The C library's take a tenth of a second to read.
    lines: OnceLock<Option<Lines>>,
    functions: Vec<Symbol>,
    /// Whether names are those of generated code, which are not mangled.
    is_generated: bool,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbols")
            .field("modules", &self.modules.len())
            .field("notes", &self.notes)
            .finish()
    }
}

impl Symbols {
    /// Looks up in the files of `modules`.
    pub fn new(modules: &[Module]) -> Self {
        Self {
            modules: modules.to_vec(),
            ..Self::default()
        }
    }

    /// Like [`Symbols::new`], with the names of generated code that the recording in `folder` has.
    pub(crate) fn of_recording(folder: &Path, modules: &[Module]) -> Self {
        Self {
            folder: Some(folder.to_owned()),
            ..Self::new(modules)
        }
    }

    /// Like [`Symbols::new`], with actual paths by (path as recorded, build-id).
    pub(crate) fn with_paths(
        modules: &[Module],
        paths: &FxHashMap<(String, String), PathBuf>,
    ) -> Self {
        Self {
            paths: paths.clone(),
            ..Self::new(modules)
        }
    }

    /// The function at virtual address `offset` of a module's file, innermost frame first. An inlined function is a
    /// frame of its own, before the function that contains it. If nothing is known, the result is one frame without
    /// names.
    pub fn instruction(&mut self, module: ModuleId, offset: u64) -> Vec<Frame> {
        self.look_up(module, offset, false)
    }

    /// Like [`Symbols::instruction`], for an address to which a call returns: the call itself is the instruction
    /// before. Of runtimes ([`is_runtime_module`]), it gives the function without file and line, which say nothing about
    /// who called.
    pub fn return_address(&mut self, module: ModuleId, offset: u64) -> Vec<Frame> {
        self.look_up(module, offset, true)
    }

    /// Machine code of the function at virtual address `offset` of a module's file, at most `bytes_max` bytes. The code
    /// begins with the function and includes `offset`.
    ///
    /// # Errors
    /// A message: the module's file is missing or another file, is not for x86-64, or names no function there, or
    /// `offset` is too far behind the function's begin.
    pub fn machine_code(
        &self,
        module: ModuleId,
        offset: u64,
        bytes_max: u64,
    ) -> Result<MachineCode, String> {
        let recorded = self.modules.get(module.0 as usize);
        let recorded = recorded.filter(|module| !module.path.starts_with('['));
        let recorded = recorded.ok_or("its code is in no file")?;
        let file = open_module(recorded, &self.paths)?;
        if !file.is_for_x86_64() {
            return Err("instructions are shown of x86-64 code only".to_owned());
        }
        let loaded = ModuleSymbols::new(&file, &recorded.build_id);
        let function = loaded.function(offset);
        let function = function.ok_or("the file names no function there")?;
        let address = function.address;
        // Hand-written code has functions without a size.
        let size_bytes = function
            .size_bytes
            .max((offset - address).saturating_add(1));
        let size_bytes = size_bytes.min(bytes_max.max(1));
        if offset - address >= size_bytes {
            return Err(format!(
                "the function is larger than the {} KiB that are shown",
                bytes_max >> 10
            ));
        }
        let bytes = file.bytes(address, size_bytes);
        Ok(MachineCode {
            function: demangle(&function.name),
            address,
            bytes: bytes.ok_or("the file has no code there")?,
        })
    }

    /// Modules that could not be looked up, and why: a line for each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn look_up(&mut self, module: ModuleId, offset: u64, returned: bool) -> Vec<Frame> {
        if let Some(frames) = self.answers.get(&(module, offset, returned)) {
            return frames.clone();
        }
        let loaded = match self.loaded.remove(&module) {
            Some(loaded) => loaded,
            None => self.load(module),
        };
        let probe = offset.saturating_sub(u64::from(returned));
        let with_lines = !(returned && self.is_of_runtime(module));
        let mut frames = loaded
            .as_ref()
            .map(|loaded| loaded.frames(probe, with_lines))
            .unwrap_or_default();
        if frames.is_empty() {
            frames.push(Frame::unknown(module, offset));
        }
        for frame in &mut frames {
            (frame.module, frame.offset) = (Some(module), offset);
        }
        self.loaded.insert(module, loaded);
        self.answers
            .insert((module, offset, returned), frames.clone());
        frames
    }

    fn is_of_runtime(&self, module: ModuleId) -> bool {
        let module = self.modules.get(module.0 as usize);
        module.is_some_and(|module| is_runtime_module(module.file_name().as_bytes()))
    }

    fn load(&mut self, module: ModuleId) -> Option<ModuleSymbols> {
        let recorded = self.modules.get(module.0 as usize)?;
        let imported = self.folder.as_deref();
        let imported = imported.and_then(|folder| source_lines::map_of(folder, recorded));
        if let Some(file) = imported {
            let imported = source_lines::read(&file).inspect_err(|error| {
                self.notes
                    .push(format!("no lines of code: {}: {error}", file.display()));
            });
            return Some(ModuleSymbols {
                imported: imported.ok()?,
                ..ModuleSymbols::default()
            });
        }
        if recorded.path.starts_with('[') {
            let map = jit::map_of(self.folder.as_deref()?, recorded)?;
            let functions = jit::read(&map)
                .inspect_err(|error| {
                    self.notes.push(format!(
                        "no names for {}: {}: {error}",
                        readable(&recorded.path),
                        map.display()
                    ));
                })
                .ok()?;
            return Some(ModuleSymbols {
                functions,
                is_generated: true,
                ..ModuleSymbols::default()
            });
        }
        let kept = self.folder.as_deref();
        let kept = kept.map(|folder| nameless::map_of(folder, recorded));
        if let Some(functions) = kept.and_then(|map| jit::read(&map).ok()) {
            return Some(ModuleSymbols {
                functions,
                ..ModuleSymbols::default()
            });
        }
        match open_module(recorded, &self.paths) {
            Ok(file) => Some(ModuleSymbols::new(&file, &recorded.build_id)),
            Err(cause) => {
                self.notes.push(format!(
                    "no names for {}: {cause}",
                    readable(&recorded.path)
                ));
                None
            }
        }
    }
}

impl Frame {
    pub(crate) fn unknown(module: ModuleId, offset: u64) -> Self {
        let (function, file) = (String::new(), String::new());
        Self {
            module: Some(module),
            offset,
            function,
            file,
            line: 0,
            inlined: false,
        }
    }
}

/// Opens the file of a module, if it is still the recorded file.
pub(crate) fn open_module(
    module: &Module,
    paths: &FxHashMap<(String, String), PathBuf>,
) -> Result<ElfFile, String> {
    let key = (module.path.clone(), module.build_id.clone());
    // Some events lack the build-id, which was read from the file afterwards.
    let path = paths
        .get(&key)
        .or_else(|| paths.get(&(key.0, String::new())))
        .cloned()
        .unwrap_or_else(|| module.file().into_owned());
    if path.is_absolute() {
        return open_checked(&path, &module.build_id);
    }
    // A redacted recording: only a build-id tells that a file of this name is the right one.
    if module.build_id.is_empty() {
        return Err("its path was left out, and it has no build-id to find it by".into());
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders = LIBRARY_FOLDERS
        .iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&search));
    folders
        .map(|folder| folder.join(&path))
        .find_map(|candidate| open_checked(&candidate, &module.build_id).ok())
        .ok_or_else(|| {
            "its path was left out, and no file of that name and build-id was found".into()
        })
}

fn open_checked(path: &Path, build_id: &str) -> Result<ElfFile, String> {
    let file = ElfFile::open(path).map_err(|error| error.to_string())?;
    let found = file.build_id();
    if !build_id.is_empty() && found != build_id {
        return Err(format!(
            "the file was rebuilt since (build-id {build_id} recorded, {found} found)"
        ));
    }
    Ok(file)
}

impl ModuleSymbols {
    fn new(file: &ElfFile, build_id: &str) -> Self {
        let debug = if file.has_debug_information() {
            None
        } else {
            find_debug_file(file, build_id)
        };
        let mut functions = file.functions();
        if let Some(debug) = &debug {
            functions.extend(debug.functions());
            functions.sort_by_key(|function| function.address);
        }
        let source = debug.as_ref().unwrap_or(file);
        let has_lines = source.has_debug_information();
        Self {
            debug: has_lines.then(|| source.path().to_owned()),
            functions,
            ..Self::default()
        }
    }

    fn lines(&self) -> Option<&Lines> {
        let read = || Lines::open(self.debug.as_deref()?);
        self.lines.get_or_init(read).as_ref()
    }

    fn frames(&self, probe: u64, with_lines: bool) -> Vec<Frame> {
        if let Some(frame) = source_lines::frame(&self.imported, probe) {
            return vec![frame];
        }
        let lines = with_lines.then(|| self.lines()).flatten();
        let mut frames = lines
            .and_then(|lines| frames_of(lines, probe))
            .unwrap_or_default();
        let symbol = self.function(probe);
        match (frames.last_mut(), symbol) {
            (Some(outermost), Some(symbol)) if outermost.function.is_empty() => {
                outermost.function = demangle(&symbol.name)
            }
            (None, Some(symbol)) => {
                frames.push(Frame {
                    function: match self.is_generated {
                        true => symbol.name.clone(),
                        false => demangle(&symbol.name),
                    },
                    ..Frame::unknown(ModuleId(0), 0)
                });
            }
            _ => {}
        }
        frames
    }

    fn function(&self, probe: u64) -> Option<&Symbol> {
        let after = self
            .functions
            .partition_point(|function| function.address <= probe);
        let function = self.functions[..after].last()?;
        (function.size_bytes == 0 || probe - function.address < function.size_bytes)
            .then_some(function)
    }
}

fn frames_of(lines: &Lines, probe: u64) -> Option<Vec<Frame>> {
    let frames = lines.frames(probe);
    let outermost = frames.len().saturating_sub(1);
    let frames = frames.into_iter().enumerate();
    let frames: Vec<Frame> = frames
        .map(|(at, frame)| Frame {
            function: frame.function,
            file: frame.file,
            line: frame.line.unwrap_or_default(),
            inlined: at < outermost,
            ..Frame::unknown(ModuleId(0), 0)
        })
        .collect();
    let known = frames
        .iter()
        .any(|frame| !frame.function.is_empty() || frame.line != 0);
    known.then_some(frames)
}

/// Finds a debug file by build-id first, then by `.gnu_debuglink` in the places where gdb looks.
fn find_debug_file(file: &ElfFile, build_id: &str) -> Option<ElfFile> {
    let own = if build_id.is_empty() {
        file.build_id()
    } else {
        build_id.to_owned()
    };
    let same_build = |candidate: PathBuf| {
        let debug = ElfFile::open(&candidate).ok()?;
        (own.is_empty() || debug.build_id() == own).then_some(debug)
    };
    if let Some((folder, rest)) = own.split_at_checked(2).filter(|(_, rest)| !rest.is_empty()) {
        let by_id = Path::new(DEBUG_FOLDER)
            .join(".build-id")
            .join(folder)
            .join(format!("{rest}.debug"));
        if let Some(debug) = same_build(by_id) {
            return Some(debug);
        }
    }
    let link = file.debug_link()?;
    let folder = file.path().parent()?;
    let elsewhere = Path::new(DEBUG_FOLDER).join(folder.strip_prefix("/").unwrap_or(folder));
    [
        folder.join(&link),
        folder.join(".debug").join(&link),
        elsewhere.join(&link),
    ]
    .into_iter()
    .find_map(same_build)
}
