//! Messages go to the recorder, which prints them: standard error is the program's.

use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use nearpage_wire::messages::{FILE_BYTES, FILE_NAME, FILE_WORDS, leave};

use crate::system::Memory;

static FILE: OnceLock<&[AtomicU32; FILE_WORDS]> = OnceLock::new();

/// Finds the file that the recorder made beside the setup.
pub fn start(setup: &Path) {
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(setup.with_file_name(FILE_NAME))
    };
    // A shorter file would be a SIGBUS for the program.
    let is_whole = |bytes: u64| bytes >= FILE_BYTES as u64;
    if let Ok(file) = open()
        && file
            .metadata()
            .is_ok_and(|metadata| is_whole(metadata.len()))
        && let Some(memory) = Memory::new(Some(&file), FILE_BYTES)
        && let Ok(words) = memory.into_words().try_into()
    {
        let _ = FILE.set(words);
    }
}

/// Writes a line for the recorder, or to standard error if QEMU was started by hand.
pub fn say(text: fmt::Arguments<'_>) {
    match FILE.get() {
        Some(file) => leave(file, std::process::id(), text.to_string().as_bytes(), false),
        None => eprintln!("nearpage: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nearpage_wire::messages::{MAGIC, lines};

    use super::*;

    #[test]
    fn messages_go_to_the_recorders_file() {
        let folder = std::env::temp_dir().join(format!("nearpage-messages-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        let file = folder.join(FILE_NAME);
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        fs::write(&file, &bytes[..FILE_BYTES - 1]).expect("written");
        start(&folder.join("setup"));
        assert!(FILE.get().is_none(), "it is too short");
        fs::write(&file, bytes).expect("written");
        start(&folder.join("setup"));
        say(format_args!("no more of the {}", "trace"));
        let bytes = fs::read(&file).expect("the file");
        let said: Vec<_> = lines(&bytes).map(|line| (line.pid, line.text)).collect();
        assert_eq!(said, [(std::process::id(), &b"no more of the trace"[..])]);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
