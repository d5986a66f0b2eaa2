# `make help` lists the targets. What CI does is in .ci/run, one step a target here.

.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: ## gofmt, go vet and all tests: run this before every commit
	@bash .ci/run format vet test

test: ## all tests, as the README has it
	go test ./...

race: ## tests of the packages with goroutines, with the race detector
	@bash .ci/run race

lint: ## golangci-lint; the first run builds it, which takes minutes
	@bash .ci/run lint

vuln: ## govulncheck: known faults in what is called (needs the internet)
	@bash .ci/run vuln

cross: ## build for every system that is promised
	@bash .ci/run cross

golden: ## golden vectors, logits and kernels with GOAMD64=v1 and v3, AVX-512 VNNI, and arm64, emulated where need be
	@bash .ci/run amd64 avx512 arm64

arm64: ## golden vectors and logits on arm64 under qemu
	@bash .ci/run arm64

fuzz: ## every fuzz target, a few thousand inputs each
	@bash .ci/run fuzz

soak: ## what must hold for long: silent hops, stuck workers, hub restarts, 2,000 idle sessions, hostile strangers (30 minutes)
	KVASIR_SOAK=1 go test -count=1 -p 1 -parallel 64 -timeout 60m -v \
	  -run 'AnyPlan|TheSilentDeath|BackAtOnce|GluedToARequest|BadInput|ShrugsOff|IdleSessionsCost|ControlOvertakesSeven|StuckWorker|HubThatRestarts|WhateverDies' \
	  ./wire/link ./wire/relay

chaos: ## a thousand random runs of kills, stalls and broken answers; worker processes killed and flapping for minutes
	KVASIR_CHAOS=1 go test -count=1 ./batcher -run 'TestChaosChangesNoBit$$'
	go test -count=1 -v ./batcher -run 'HedgingCuts|SlowWorkerCosts|KilledWorkerFails|KilledSession|Flapping|Nowhere'
	KVASIR_CHAOS=1 go test -count=1 -v -timeout 30m ./cmd/kvasir -run 'KilledWorkerProcess|FlappingWorkerProcess'

batches: ## 50,000 lines killed five times, and three servers on PostgreSQL of which one is killed every 10 s
	KVASIR_BATCHES_LONG=1 go test -count=1 -timeout 240m -v ./cmd/kvasir -run 'TestBatchGoesOnWhereItWasKilled|TestServersThatAreKilled'

kills: ## 200 times kill -9 of hub, gateway, backbone or worker, and then the books (6 minutes)
	KVASIR_SOAK=1 go test -count=1 -v -timeout 60m ./cmd/kvasir -run TestAnyOfFourProcesses

smoke: ## run the commands as a user would, right and wrong
	@bash .ci/run smoke

bench: ## all Go benchmarks, six times, for benchstat: make bench > new.txt
	@go test -run '^$$' -bench . -benchmem -count 6 ./...

benchmarks: ## run every scenario of kvasir-bench (20 minutes on a quiet machine) and put what it finds into BENCHMARKS.md
	@bash .ci/benchmarks

benchstat: ## compare two such outputs: make benchstat OLD=old.txt NEW=new.txt
	@go tool -modfile=internal/tools/go.mod benchstat $(OLD) $(NEW)

update: ## write the golden vectors of kernels/ref anew, then look at the diff
	go test ./kernels/ref -update

tidy: ## go mod tidy, here and for the tools
	go mod tidy
	go -C internal/tools mod tidy

clean: ## remove what make has built
	rm -rf bin

ci: ## everything that CI does
	@bash .ci/run

.PHONY: help check test race lint vuln cross golden arm64 fuzz soak chaos batches kills smoke bench benchmarks benchstat update tidy clean ci
