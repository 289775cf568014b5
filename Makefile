# What people and CI run. `make` alone lists it. Written for GNU make 3.81 and later (macOS has 3.81).

ARGS ?=
FUZZTIME ?= 10s
SOAK ?= 10m
SEED ?=
ONLY ?=
DRY ?=

# As the image is built; only the race detector needs cgo. One setting for all, so that nothing is compiled twice. Without
# what only debuggers read, programs are linked in a third of the time.
export CGO_ENABLED = 0
export GOFLAGS := $(GOFLAGS) -trimpath -ldflags=-w

.DEFAULT_GOAL := help
.PHONY: help run build quick test race race-waiting race-servers race-packages plain e2e packages deploy-tests check compiled bench soak fuzz world mutations vuln image release-snapshot lines clean

help: ## list what there is to make
	@sed -n -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-23s %s\n", $$1, $$2 }'

# exec, so that Ctrl-C is listedge's to handle and its exit status is the one that counts.
run: ## try it: Postgres, sample data, a key and a node. ARGS="--nodes 3" for a fleet
	@deploy/install.sh postgres $(if $(findstring --nodes,$(ARGS)),redis)
	@$(MAKE) --no-print-directory build
	@exec ./bin/listedge dev $(ARGS)

build: ## compile bin/listedge
	go build -o bin/listedge ./cmd/listedge

quick: build ## what to run first: builds, vets, and runs all tests that need no server (two minutes on two free cores)
	@packages=$$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | grep -vE 'sandbox|databasetest' | cut -d' ' -f1) \
	&& go vet $$packages && go test -vet=off $$packages

test: ## check, and all tests, with what they need installed
	@deploy/install.sh
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory compiled
	@$(MAKE) --no-print-directory -j 3 deploy-tests plain # side by side: they wait a lot
	@$(MAKE) --no-print-directory -j 3 race # which computes a lot, and would keep those waiting

# The race detector makes tests three to ten times as slow. Of packages in which hardly anything runs at once, it has a few
# tests. A test runs twice only if both say something: the race detector falsifies what tests measure, and of a model it shows nothing.
# -count=1: Go, which keeps the results of tests, does not see that a program has changed which a test builds and starts. These do.
PROGRAM = ./cmd/listedge ./cmd/listedge/e2e
PLAIN = ./cache/replica ./cmd/listedge ./cmd/listedge/doctor ./cmd/listedge/e2e ./internal/list ./internal/redact ./internal/remedy \
	./origin ./origin/admin
RACED = FloodOfUnknownKeysLocks|NeverSeeEachOther|OneTrace
TWICE = FreshnessUnderFaults/bursts|FreshnessUnderFaults/SIGKILLed
# These compute for long in one goroutine, or measure: only without the race detector.
ALONE = TheScriptOf|MemoryBudget|ALongPageEnds|AFloodOfMadeUp|InTwoSegments|AWorldIsShrunk
RACED_ORIGIN = FairQueue|QueriesThat|Cancelled|Survives|FromStandby|UnderLoad|SchemaChanges|BeforeTheTimeline|ClosedIdle
RACED_PACKAGES = $$({ go list ./...; go list $(PLAIN); } | sort | uniq -u)
WAITING = /limiter$$|/origin/follower$$
race: race-waiting race-servers race-packages # of `make test`

# Nearly all the time of these is spent on waiting, so each is beside what computes from the beginning on.
race-waiting: # of `make test`
	CGO_ENABLED=1 go test -vet=off -race -p 2 -timeout 45m -skip '$(ALONE)' $$(echo "$(RACED_PACKAGES)" | grep -E '$(WAITING)')

race-servers: # of `make test`
	CGO_ENABLED=1 go test -count=1 -vet=off -race -timeout 45m -run '$(RACED)|$(TWICE)' ./cmd/listedge/e2e
	CGO_ENABLED=1 go test -vet=off -race -p 1 -timeout 45m -run '$(RACED_ORIGIN)|HalfTransaction' ./origin ./cache/replica

race-packages: # of `make test`
	CGO_ENABLED=1 go test -vet=off -race -p 1 -timeout 45m -skip '$(ALONE)' $$(echo "$(RACED_PACKAGES)" | grep -vE '$(WAITING)')

plain: e2e packages # of `make test`

e2e: # of `make test`
	go test -count=1 -vet=off -p 2 -timeout 45m -skip '$(RACED)' $(PROGRAM)

packages: # of `make test`
	go test -vet=off -p 1 -timeout 45m $(filter-out $(PROGRAM),$(PLAIN))
	go test -vet=off -p 2 -timeout 45m -run '$(ALONE)|Alloc|MemoryOf|IsBounded|Quota|TestWorld|SameSeed|WhatClientsGet|WhatAFleet|WhatALoss|WhatPages' ./cache ./edge ./internal/world ./limiter ./origin/apikey ./origin/usage

deploy-tests: # of `make test`; a module of its own: see its go.mod
	go -C deploy test -count=1 -vet=off -timeout 45m .

# Tags by which nothing else is compiled. All modules have the same ones, so that what they share is vetted once.
TAGS = soak,mutations,release
check: ## formatting, vet, staticcheck, and whether all mutations still apply
	@unformatted=$$(gofmt -l .) && [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted" >&2; exit 1; }
	go vet -tags $(TAGS) ./...
	go -C bench vet -tags $(TAGS) .
	go -C deploy vet -tags $(TAGS) .
	go -C cmd/listedge/mutations test -vet=off -tags mutations -run Mutations . -args -dry
	staticcheck=$$(go tool -n staticcheck) && $$staticcheck ./... && (cd bench && $$staticcheck .) && (cd deploy && $$staticcheck .)

# The flags of buildCounted in cmd/listedge/e2e/ways_test.go.
COUNTED = -cover -covermode=atomic \
	-coverpkg=listedge/cmd/...,listedge/edge,listedge/cache/...,listedge/limiter/...,listedge/metrics,listedge/origin/...,listedge/internal/...

# Tests wait for milliseconds, so no compiler runs beside them. `go list -export` compiles and links nothing.
compiled: # for `make test`: what the tests are made from and what they compile themselves, with the same flags
	CGO_ENABLED=1 go list -race -export -deps -test $(RACED_PACKAGES) ./cmd/listedge/e2e ./origin ./cache/replica >/dev/null
	CGO_ENABLED=1 go list -race -export -deps ./cmd/listedge >/dev/null
	go list -export -deps -test ./... >/dev/null
	go build $(COUNTED) -o /dev/null ./cmd/listedge
	go tool -n covdata >/dev/null
	go -C deploy list -export -deps -test . >/dev/null
	go -C deploy/actionlint tool -n actionlint >/dev/null
	go -C deploy test -vet=off -run TypesOfTheClients . # which also installs what deploy/clients needs

bench: ## what it costs, against the bare minimum and others (Linux); writes bench/report.md. ONLY="hits misses ..." writes these sections
	@deploy/install.sh postgres redis wrk
	@deploy/install.sh haproxy || echo "bench: goes on without it" >&2
	@{ deploy/install.sh cc && bench/opponents.sh bin/opponents; } || deploy/install.sh nginx lua varnish || \
		echo "bench: goes on without those to compare with" >&2
	go -C bench build -o ../bin/bench . # a module of its own: see its go.mod
	./bin/bench -o bench/report.md -opponents bin/opponents $(ONLY)

soak: ## faults to a fleet in a random order for SOAK (10m), each page compared for as long, and each outage is one page; SEED=n repeats one. ONLY=regexp picks some
	@deploy/install.sh
	go test -tags soak -run '$(if $(ONLY),$(ONLY),Soak)' -v -timeout 0 ./cmd/listedge/e2e -soak $(SOAK) $(if $(SEED),-seed $(SEED))
	go -C deploy test -tags soak -run '$(if $(ONLY),$(ONLY),Soak)' -v -timeout 0 .

# go test fuzzes one function of one package at a time.
fuzz: ## every fuzz test for FUZZTIME (10s)
	@grep -rE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' . \
	| sed -E 's|^(.*)/[^/]*:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' \
	| while read -r folder name; do \
		echo "$$folder $$name"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$folder" </dev/null || exit 1; \
	done

world: ## simulated fleets of new seeds for TIME (10m), until a promise is broken. SEED=n plays one, prints its trace and shrinks it: docs/TESTING.md
	go test -run '^TestWorld' -v -timeout 0 ./internal/world $(if $(SEED),-world-seed $(SEED),-world-time $(or $(TIME),10m))

# A test that cannot fail shows nothing: each rule is broken once in a copy, and the tests that are about it must fail.
mutations: ## break the rules of freshness, keys and limits one at a time, and see their tests fail (an hour). ONLY=regexp picks some; DRY=1 checks that all still apply
	@deploy/install.sh postgres redis
	go -C cmd/listedge/mutations test -tags mutations -run '$(if $(ONLY),$(ONLY),Mutations)' -timeout 0 $(if $(DRY),-args -dry)

vuln: ## known vulnerabilities in what is used; asks the Go project's database
	go run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

image: ## the container image, listedge:latest
	docker build -f deploy/Dockerfile --build-arg REVISION=$$(git rev-parse HEAD) -t listedge .

release-snapshot: ## all of a release from what is here, in bin/release (Linux), and its tests: the package is installed and starts
	deploy/release/release.sh $$(sed -n 's/^var version = "\(.*\)"$$/\1/p' cmd/listedge/main.go)
	go -C deploy test -tags release -run Release -timeout 15m release_test.go package_test.go fleet_test.go image_test.go # not those with Kubernetes

lines: ## lines of product code by package, without blank lines, comments and tests
	@for d in edge origin cache limiter cmd metrics internal; do \
		printf '%6d %s\n' "$$(find $$d -name '*.go' ! -name '*_test.go' ! -path '*test/*' -exec cat {} + | grep -vcE '^[[:space:]]*(//.*)?$$')" $$d; \
	done

clean: ## remove what make made
	rm -rf bin
