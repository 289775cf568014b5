package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ServerAccount returns the account that Postgres runs as: our own (nil), unless that is
// root, which Postgres refuses. Then it is the first unprivileged account that exists.
// Error: there is none.
func ServerAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("Postgres does not run as root, and there is neither a user postgres nor nobody")
}

// prepareFolder makes dir, gives it to the account and checks that the account
// can reach it through every folder above.
func prepareFolder(dir string, as *syscall.Credential) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("%w %s: %w", ErrDataFolder, dir, err)
	}
	if as == nil {
		return nil
	}
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return fmt.Errorf("%w %s: %w", ErrDataFolder, dir, err)
		}
		owner, known := info.Sys().(*syscall.Stat_t)
		if info.Mode()&0o001 == 0 && !(known && owner.Uid == as.Uid && info.Mode()&0o100 != 0) {
			return fmt.Errorf("%w %s: Postgres, which does not run as root, may not enter %s", ErrDataFolder, dir, above)
		}
		if above == filepath.Dir(above) {
			break
		}
	}
	return give(dir, as)
}

func give(path string, as *syscall.Credential) error {
	if as == nil {
		return nil
	}
	if err := os.Chown(path, int(as.Uid), int(as.Gid)); err != nil {
		return fmt.Errorf("%w: %w", ErrDataFolder, err)
	}
	return nil
}

// keptVersion reads the major version of the cluster's files; 0 = there are no files.
func keptVersion(cluster string) (int, error) {
	b, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDataFolder, err)
	}
	major, _, _ := strings.Cut(strings.TrimSpace(string(b)), ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0, fmt.Errorf("%w %s: PG_VERSION says %q", ErrDataFolder, cluster, b)
	}
	return n, nil
}
