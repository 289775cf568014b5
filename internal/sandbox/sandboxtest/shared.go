package sandboxtest

import (
	"context"
	"os"
	"sync"

	"listedge/internal/sandbox"
)

// Shared is one private Postgres for all tests of a binary, without crash
// safety. It starts with the first that asks for it; TestMain ends it.
type Shared struct {
	Settings map[string]string
	Prepare  func(context.Context, *sandbox.Postgres) error // once it has started; nil = nothing

	once     sync.Once
	postgres *sandbox.Postgres
	dir      string
	err      error
}

// Postgres is the server, or why there is none.
func (s *Shared) Postgres() (*sandbox.Postgres, error) {
	s.once.Do(func() { s.err = s.start() })
	return s.postgres, s.err
}

func (s *Shared) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if s.dir, err = tempDir(); err != nil {
		return err
	}
	s.postgres, err = sandbox.StartPostgres(ctx, sandbox.PostgresOptions{Dir: s.dir, Disposable: true, Settings: s.Settings})
	if err == nil && s.Prepare != nil {
		err = s.Prepare(ctx, s.postgres)
	}
	return err
}

// Stop ends the server, if it was started, and removes its folder.
func (s *Shared) Stop() error {
	if s.postgres != nil {
		if err := s.postgres.Stop(); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.dir)
}
