//! An ELF file: its identity, its static objects and its functions.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nearpage_elf::{CodeFrame, Contents, Lines, demangle};
use nearpage_files::path_to_text;
use nearpage_wire::is_mangled;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _, SymbolKind, elf};

use crate::{BuildId, Error};

type Elf<'data> = ElfFile64<'data, Endianness, &'data Contents>;

/// If a line's code is in more pieces than this, it counts as one range from the first to the last.
const RANGES_MAX: usize = 4;

/// A program or library on disk.
#[derive(Debug)]
pub struct ModuleImage {
    /// Path with symbolic links resolved.
    pub path: PathBuf,
    /// File name without folders.
    pub file_name: String,
    /// GNU build-id, lower-case hexadecimal; empty where there is none.
    pub build_id: BuildId,
    /// True for a program that starts without a dynamic loader, so that no library can be preloaded.
    pub is_static: bool,
    /// Processor that the file is for (`e_machine`).
    pub(crate) processor: u16,
    /// Libraries that the file needs, and where it says to look for them.
    pub(crate) needed: DynamicSection,
    symbols: OnceCell<Symbols>,
    lines: OnceCell<Option<Lines>>,
}

/// Libraries and search paths of the dynamic section.
#[derive(Debug, Default)]
pub(crate) struct DynamicSection {
    pub libraries: Vec<String>,
    pub rpath: Option<String>,
    pub runpath: Option<String>,
}

/// A named range of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name in the file, without a version.
    pub name: String,
    /// Virtual address in the file.
    pub offset: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

#[derive(Debug, Default)]
struct Symbols {
    objects: Names,
    functions: Names,
}

/// Symbols by ascending address.
#[derive(Debug, Default)]
struct Names {
    symbols: Vec<Symbol>,
    /// Positions by demangled name, built at the first request for a name that the file does not have itself.
    demangled: OnceCell<HashMap<String, Vec<usize>>>,
}

impl Names {
    fn named(&self, name: &str) -> Vec<&Symbol> {
        let exact: Vec<&Symbol> = self
            .symbols
            .iter()
            .filter(|symbol| symbol.name == name)
            .collect();
        if !exact.is_empty() {
            return exact;
        }
        let demangled = self.demangled.get_or_init(|| {
            let mut positions: HashMap<String, Vec<usize>> = HashMap::new();
            for (position, symbol) in self.symbols.iter().enumerate() {
                if is_mangled(&symbol.name) {
                    let name = demangle(&symbol.name);
                    positions.entry(name).or_default().push(position);
                }
            }
            positions
        });
        let positions = demangled.get(name).into_iter().flatten();
        positions.map(|&position| &self.symbols[position]).collect()
    }
}

impl ModuleImage {
    /// Reads the headers of a 64-bit ELF file; symbols are read at first use.
    ///
    /// # Errors
    /// The file is unreadable, or of another kind.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let read = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        let path = path.canonicalize().map_err(read)?;
        let contents = Contents::open(&path).map_err(read)?;
        let file = Elf::parse(&contents).map_err(|error| Error::Elf {
            path: path.clone(),
            message: format!("expected a 64-bit ELF program or library: {error}"),
        })?;
        let endian = file.endian();
        let kinds: Vec<elf::ProgramType> = file
            .elf_program_headers()
            .iter()
            .map(|header| header.p_type(endian))
            .collect();
        let build_id = file.build_id().ok().flatten().unwrap_or_default();
        let needed = read_needed(&file);
        Ok(Self {
            file_name: file_name(&path),
            build_id: build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            is_static: !kinds.contains(&elf::PT_INTERP),
            processor: file.elf_header().e_machine(endian).0,
            needed,
            symbols: OnceCell::new(),
            lines: OnceCell::new(),
            path,
        })
    }

    /// Static objects of this name, as the file has it or demangled, by ascending address. Empty
    /// where there is none, and where the symbol table can't be read.
    pub fn objects(&self, name: &str) -> Vec<&Symbol> {
        self.symbols().objects.named(name)
    }

    /// Functions of this name, as the file has it or demangled, by ascending address.
    pub fn functions(&self, name: &str) -> Vec<&Symbol> {
        self.symbols().functions.named(name)
    }

    /// Names of all static objects, for suggestions.
    pub fn object_names(&self) -> impl Iterator<Item = &str> {
        self.symbols()
            .objects
            .symbols
            .iter()
            .map(|symbol| symbol.name.as_str())
    }

    /// Names of all functions, for suggestions.
    pub fn function_names(&self) -> impl Iterator<Item = &str> {
        self.symbols()
            .functions
            .symbols
            .iter()
            .map(|symbol| symbol.name.as_str())
    }

    /// All functions, by ascending address.
    pub fn all_functions(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols().functions.symbols.iter()
    }

    /// The return addresses (lowest and highest, inclusive) of the calls that `line` of `function` makes, itself or
    /// through code inlined there; empty if the file has no line table, or the line no code.
    pub fn line_ranges(&self, function: &Symbol, line: u32) -> Vec<(u64, u64)> {
        self.ranges_where(function, |frames| {
            frames.last().is_some_and(|frame| frame.line == Some(line))
        })
    }

    /// As [`Self::line_ranges`], for the function called `name` wherever it was inlined; line 0: all of its lines.
    pub fn inlined_ranges(&self, name: &str, line: u32) -> Vec<(u64, u64)> {
        let matches = |frames: &[CodeFrame]| {
            let (_, inlined) = frames.split_last().unwrap_or((&frames[0], &[]));
            let is_it = |frame: &CodeFrame| {
                frame.function == name && (line == 0 || frame.line == Some(line))
            };
            inlined.iter().any(is_it)
        };
        let functions = self.symbols().functions.symbols.iter();
        functions
            .flat_map(|function| self.ranges_where(function, matches))
            .collect()
    }

    /// Return addresses of calls in `function`, at instructions whose frames, innermost first, satisfy `wanted`.
    fn ranges_where(
        &self,
        function: &Symbol,
        wanted: impl Fn(&[CodeFrame]) -> bool,
    ) -> Vec<(u64, u64)> {
        let open = || Lines::open(&self.path);
        let Some(lines) = self.lines.get_or_init(open) else {
            return Vec::new();
        };
        let end = function.offset.saturating_add(function.size_bytes);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, length) in lines.pieces(function.offset, end) {
            let frames = lines.frames(start);
            if frames.is_empty() || !wanted(&frames) {
                continue;
            }
            // A return address is behind its call, so it may be the first address of the next row.
            let (low, high) = (
                start.saturating_add(1),
                start.saturating_add(length).min(end),
            );
            match ranges.last_mut() {
                Some(last) if last.1.saturating_add(1) >= low => last.1 = last.1.max(high),
                _ => ranges.push((low, high)),
            }
        }
        match (ranges.first(), ranges.last()) {
            (Some(first), Some(last)) if ranges.len() > RANGES_MAX => vec![(first.0, last.1)],
            _ => ranges,
        }
    }

    fn symbols(&self) -> &Symbols {
        self.symbols
            .get_or_init(|| read_symbols(&self.path).unwrap_or_default())
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    path_to_text(name.as_bytes())
}

fn read_needed(file: &Elf<'_>) -> DynamicSection {
    let mut needed = DynamicSection::default();
    let Ok(table) = file.elf_dynamic_table() else {
        return needed;
    };
    for entry in table.iter() {
        if !matches!(entry.tag, elf::DT_NEEDED | elf::DT_RPATH | elf::DT_RUNPATH) {
            continue;
        }
        let Ok(text) = table.string(entry) else {
            continue;
        };
        let text = path_to_text(text);
        match entry.tag {
            elf::DT_NEEDED => needed.libraries.push(text),
            elf::DT_RPATH => needed.rpath = Some(text),
            _ => needed.runpath = Some(text),
        }
    }
    needed
}

fn read_symbols(path: &Path) -> Option<Symbols> {
    let contents = Contents::open(path).ok()?;
    let file = Elf::parse(&contents).ok()?;
    let mut symbols = Symbols::default();
    // The dynamic table repeats part of the full one, which stripped files lack.
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let table = match symbol.kind() {
            SymbolKind::Data => &mut symbols.objects.symbols,
            SymbolKind::Text => &mut symbols.functions.symbols,
            _ => continue,
        };
        let Ok(name) = symbol.name() else { continue };
        if symbol.is_definition() && symbol.size() > 0 && !name.is_empty() {
            let name = name.split('@').next().unwrap_or(name).to_owned();
            table.push(Symbol {
                name,
                offset: symbol.address(),
                size_bytes: symbol.size(),
            });
        }
    }
    for table in [&mut symbols.objects.symbols, &mut symbols.functions.symbols] {
        table.sort_unstable_by(|a, b| {
            (a.offset, &a.name, a.size_bytes).cmp(&(b.offset, &b.name, b.size_bytes))
        });
        table.dedup();
    }
    Some(symbols)
}
