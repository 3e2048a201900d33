//! The file: schema, loading, and the writer's statements.
//!
//! `versions` has every version once, by revision; the view `current` is for manual inspection. A version becomes
//! garbage when its successor (or its own removal) is compacted.
//!
//! A file is created atomically. Therefore a file that is not a store was not left by a crash during the first start:
//! it is damaged, and is rejected without being modified.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, params};

use crate::storage::{Event, EventKind, Index, Key, StorageError, Version};

/// Must be raised whenever an older program could no longer read the file.
const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (
  revision INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  created INTEGER NOT NULL,   -- revision of the object's first version
  previous INTEGER,           -- revision that this one replaced
  deleted INTEGER NOT NULL,   -- 1: a removal, value is the last state
  at INTEGER NOT NULL,        -- commit time, milliseconds since 1970
  hole INTEGER NOT NULL,      -- offset of resourceVersion's digits in value
  value BLOB NOT NULL
);
CREATE VIEW current AS
  SELECT key, max(revision) AS revision, CAST(value AS TEXT) AS value FROM versions GROUP BY key HAVING deleted = 0;
INSERT INTO meta VALUES ('compacted', 0);
";

pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
}

pub(super) fn failure(error: &rusqlite::Error) -> StorageError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StorageError::Full(error.to_string().into()),
        _ => StorageError::Backend(error.to_string().into()),
    }
}

impl Database {
    pub(super) fn open(path: &Path, max_pages: Option<u32>) -> Result<Self, StorageError> {
        let log = path.with_extension("db-wal");
        let unclean = fs::metadata(&log).is_ok_and(|meta| meta.len() > 0);
        match fs::metadata(path) {
            // SQLite would apply an old log to a new file, and discard the log of an empty one.
            Err(error) if error.kind() == io::ErrorKind::NotFound && unclean => {
                return Err(damaged(path, format!("it is missing, but its log {} exists", log.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path)?,
            Err(error) => return Err(unusable(path, &error)),
            Ok(meta) if meta.len() == 0 => return Err(damaged(path, "it is empty")),
            Ok(_) => {}
        }
        let connection = Connection::open(path).map_err(|error| opening(path, &error))?;
        let database = Self { connection, path: path.to_owned() };
        database.prepare(unclean, max_pages).map_err(|error| match error {
            OpenError::Sqlite(error) => opening(path, &error),
            OpenError::Storage(error) => error,
        })?;
        Ok(database)
    }

    fn prepare(&self, unclean: bool, max_pages: Option<u32>) -> Result<(), OpenError> {
        let db = &self.connection;
        self.keep_log(true)?;
        let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found > SCHEMA_VERSION {
            let path = self.path.display().to_string().into();
            return Err(StorageError::NewerSchema { path, found, known: SCHEMA_VERSION }.into());
        }
        if found < 1 {
            return Err(damaged(&self.path, "it is a database without the schema of a store").into());
        }
        if unclean {
            let verdict: String = db.pragma_query_value(None, "quick_check", |row| row.get(0))?;
            if verdict != "ok" {
                return Err(damaged(&self.path, verdict).into());
            }
        }
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "FULL")?;
        // The only connection checkpoints in its own commits, so the log is reset and reused every few MiB. After a
        // burst, the log is truncated.
        db.pragma_update(None, "wal_autocheckpoint", 1000)?;
        db.pragma_update(None, "journal_size_limit", 16 << 20)?;
        if let Some(pages) = max_pages {
            db.pragma_update(None, "max_page_count", pages)?;
        }
        db.set_prepared_statement_cache_capacity(16);
        Ok(())
    }

    /// Whether closing the file keeps the log instead of merging it: nothing must be modified until everything has been
    /// read.
    fn keep_log(&self, keep: bool) -> rusqlite::Result<()> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
    }

    pub(super) fn load(&self, index: &Index) -> Result<(), StorageError> {
        let loaded = self.load_rows(index).and_then(|()| Ok(self.keep_log(false)?));
        loaded.map_err(|error| match error {
            OpenError::Sqlite(error) => opening(&self.path, &error),
            OpenError::Storage(error) => error,
        })
    }

    fn load_rows(&self, index: &Index) -> Result<(), OpenError> {
        let db = &self.connection;
        let compacted: i64 =
            db.query_row("SELECT value FROM meta WHERE name = 'compacted'", [], |row| row.get(0))?;
        let mut objects = HashMap::new();
        let mut by_revision: HashMap<i64, Arc<Version>> = HashMap::new();
        let mut events = Vec::new();
        let mut last = compacted;
        let mut rows = db.prepare(
            "SELECT revision, key, created, previous, deleted, at, hole, value FROM versions ORDER BY revision",
        )?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let revision: i64 = row.get(0)?;
            let text: String = row.get(1)?;
            let broken = || damaged(&self.path, format!("revision {revision} cannot be read"));
            let key = Key::parse(&text).ok_or_else(broken)?;
            let previous: Option<i64> = row.get(3)?;
            let deleted: bool = row.get(4)?;
            let at: i64 = row.get(5)?;
            let value: Vec<u8> = row.get(7)?;
            let created: i64 = row.get(2)?;
            let hole: u32 = row.get(6)?;
            // The object contains its own revision: a cheap check that the bytes are intact.
            let rest = value.get(hole as usize..).unwrap_or_default();
            if !rest.starts_with(format!("{revision}\"").as_bytes()) {
                return Err(broken().into());
            }
            let version =
                Version::stored(key.clone(), revision as u64, created as u64, Bytes::from(value), hole);
            let version = Arc::new(version);
            last = last.max(revision);
            if deleted {
                objects.remove(&key);
            } else {
                objects.insert(key, version.clone());
                by_revision.insert(revision, version.clone());
            }
            if revision > compacted {
                let kind = match (deleted, previous) {
                    (true, _) => EventKind::Deleted,
                    (false, Some(_)) => EventKind::Modified,
                    (false, None) => EventKind::Added,
                };
                let previous = previous.and_then(|revision| by_revision.get(&revision).cloned());
                let at = Timestamp::from_millisecond(at).unwrap_or(Timestamp::UNIX_EPOCH);
                events.push(Arc::new(Event::new(kind, version, previous, at)));
            }
        }
        index.load(objects.into_values().collect(), events, last as u64, compacted as u64);
        Ok(())
    }

    pub(super) fn begin(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    pub(super) fn commit(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    pub(super) fn rollback(&self) {
        // SQLite may already have rolled back by itself (disk full); then this does nothing.
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rollback failed");
        }
    }

    pub(super) fn store(&self, event: &Event) -> rusqlite::Result<()> {
        let version = &event.version;
        let revision = version.revision() as i64;
        let deleted = event.kind == EventKind::Deleted;
        self.connection
            .prepare_cached("INSERT INTO versions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
            .execute(params![
                revision,
                version.key().as_str(),
                version.created() as i64,
                event.previous.as_ref().map(|previous| previous.revision() as i64),
                deleted,
                event.at.as_millisecond(),
                version.hole(),
                &version.bytes()[..],
            ])?;
        Ok(())
    }

    /// Deletes history from `from` (exclusive) to `to` (inclusive) in one transaction.
    pub(super) fn compact(&self, from: u64, to: u64) -> rusqlite::Result<()> {
        self.begin()?;
        let (from, to) = (from as i64, to as i64);
        let db = &self.connection;
        db.prepare_cached(
            "DELETE FROM versions WHERE revision IN
             (SELECT previous FROM versions WHERE revision > ?1 AND revision <= ?2 AND previous IS NOT NULL)",
        )?
        .execute([from, to])?;
        db.prepare_cached("DELETE FROM versions WHERE revision > ?1 AND revision <= ?2 AND deleted = 1")?
            .execute([from, to])?;
        db.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'compacted'")?.execute([to])?;
        self.commit()
    }
}

/// Creates an empty store.
fn create(path: &Path) -> Result<(), StorageError> {
    let fresh = path.with_extension("new");
    for left in [fresh.clone(), path.with_extension("new-journal")] {
        match fs::remove_file(&left) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(&left, &error)),
            _ => {}
        }
    }
    let made = Connection::open(&fresh).and_then(|db| {
        db.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"))?;
        db.close().map_err(|(_, error)| error)
    });
    made.map_err(|error| failure(&error))?;
    fs::rename(&fresh, path).map_err(|error| unusable(path, &error))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| unusable(directory, &error))
}

/// An error while the file is opened and read: what SQLite cannot read was not written by it.
fn opening(path: &Path, error: &rusqlite::Error) -> StorageError {
    use ErrorCode::{DatabaseCorrupt, NotADatabase, Unknown};
    match error.sqlite_error_code() {
        // `Unknown` is a missing table, `None` a column of another type.
        None | Some(DatabaseCorrupt | NotADatabase | Unknown) => damaged(path, error.to_string()),
        _ => failure(error),
    }
}

fn damaged(path: &Path, why: impl Into<Arc<str>>) -> StorageError {
    StorageError::Damaged { path: path.display().to_string().into(), why: why.into() }
}

fn unusable(path: &Path, error: &io::Error) -> StorageError {
    StorageError::Backend(format!("{}: {error}", path.display()).into())
}

enum OpenError {
    Sqlite(rusqlite::Error),
    Storage(StorageError),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StorageError> for OpenError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}
