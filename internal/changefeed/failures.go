package changefeed

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Failures remembers the operations that Redis has recently refused, for example for lack
// of a right or of memory, and has not executed since. The zero value is ready to use.
type Failures struct {
	mu          sync.Mutex // guards byOperation
	byOperation map[string]failure
}

type failure struct {
	err error
	at  time.Time
}

// failureLife is how long an operation counts as failing if it is not tried again.
const failureLife = 10 * time.Second

// Note records the result of an operation, and returns it. It ignores errors that are not
// answers of Redis, such as a timeout.
func (f *Failures) Note(operation string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.byOperation, operation)
		return nil
	}
	if refusal := redis.Error(nil); errors.As(err, &refusal) {
		if f.byOperation == nil {
			f.byOperation = map[string]failure{}
		}
		f.byOperation[operation] = failure{err, time.Now()}
	}
	return err
}

// Latest returns the latest refusal; nil = there is none.
func (f *Failures) Latest() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var latest failure
	for operation, refusal := range f.byOperation {
		switch {
		case time.Since(refusal.at) > failureLife:
			delete(f.byOperation, operation)
		case refusal.at.After(latest.at):
			latest = refusal
		}
	}
	return latest.err
}
