package changefeed

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"listedge/internal/sandbox/redistest"
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a limit for what is not about the limit: for hangs, on however
// slow a machine.
const patient = time.Minute

var startRedis = redistest.Start
