package changefeed

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Failures are the operations that Redis refused recently and has not executed since: for
// lack of a right or of memory, say. The zero value has none.
type Failures struct {
	mu sync.Mutex // guards of
	of map[string]failure
}

type failure struct {
	err error
	at  time.Time
}

// failureLife is how long an operation counts as failing if it is not tried again.
const failureLife = 10 * time.Second

// Note records the result of an operation, and returns it. A missing answer is not
// recorded.
func (f *Failures) Note(operation string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.of, operation)
		return nil
	}
	if refusal := redis.Error(nil); errors.As(err, &refusal) {
		if f.of == nil {
			f.of = map[string]failure{}
		}
		f.of[operation] = failure{err, time.Now()}
	}
	return err
}

// Latest is the latest refusal; nil if all operations are executed.
func (f *Failures) Latest() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var latest failure
	for operation, one := range f.of {
		switch {
		case time.Since(one.at) > failureLife:
			delete(f.of, operation)
		case one.at.After(latest.at):
			latest = one
		}
	}
	return latest.err
}
