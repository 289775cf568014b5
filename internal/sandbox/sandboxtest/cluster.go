package sandboxtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"listedge/internal/sandbox"
)

// A server for tests begins with a copy of what initdb has made once: initdb takes ten times as long. The original is kept in
// the user's cache, for the programs of this Postgres.

// original returns the folder of a server that was started once and stopped. It makes it first if need be.
var original = sync.OnceValues(func() (dir string, err error) {
	bin, err := sandbox.FindPostgres()
	if err != nil {
		return "", err
	}
	program, err := os.Stat(filepath.Join(bin, "postgres"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil { // who has no home
		cache = os.TempDir()
	}
	of := sha256.Sum256(fmt.Append(nil, bin, program.Size(), program.ModTime()))
	dir = filepath.Join(cache, "listedge", "postgres-"+hex.EncodeToString(of[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, makeOriginal(dir)
})

func makeOriginal(dir string) error {
	made, err := TempDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	p, err := sandbox.StartPostgres(context.Background(), sandbox.PostgresOptions{Dir: made, Disposable: true})
	if err == nil {
		err = p.Stop()
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(dir), 0o755)
	}
	if err != nil {
		return err
	}
	beside, err := os.MkdirTemp(filepath.Dir(dir), "postgres-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(beside)
	if err := copyFiles(made, beside); err != nil {
		return err
	}
	err = os.Rename(beside, dir) // it is there as a whole or not at all
	if _, missing := os.Stat(dir); missing == nil {
		return nil // maybe another test has made it
	}
	return err
}

// copyFiles copies the files of a server, with their owners.
func copyFiles(from, to string) error {
	if out, err := exec.Command("cp", "-pR", filepath.Join(from, "cluster"), filepath.Join(from, "password"), to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// CopyCluster gives the folder a cluster. Postgres and nodes tell servers apart by their identifiers, so it gets one of its own.
func CopyCluster(dir string) error {
	from, err := original()
	if err == nil {
		err = copyFiles(from, dir)
	}
	if err != nil {
		return err
	}
	identifier := make([]byte, 8)
	_, _ = rand.Read(identifier)
	err = change(filepath.Join(dir, "cluster", "global", "pg_control"), func(page []byte) {
		// The checksum is behind what it is of, which is longer in newer versions.
		table, end := crc32.MakeTable(crc32.Castagnoli), len(identifier)
		for binary.NativeEndian.Uint32(page[end:]) != crc32.Checksum(page[:end], table) {
			end += 4
		}
		copy(page, identifier)
		binary.NativeEndian.PutUint32(page[end:], crc32.Checksum(page[:end], table))
	})
	if err != nil {
		return err
	}
	return change(filepath.Join(dir, "cluster", "pg_wal", "000000010000000000000001"), func(page []byte) { copy(page[24:], identifier) })
}

// change changes the first page of a file.
func change(name string, what func(page []byte)) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	page := make([]byte, 8192)
	if _, err := io.ReadFull(f, page); err != nil {
		return err
	}
	what(page)
	_, err = f.WriteAt(page, 0)
	return err
}
