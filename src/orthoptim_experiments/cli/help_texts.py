"""The long texts of help pages, which need no torch."""

from orthoptim_experiments.cli import RESTARTS

_AS_IS = "\b\n"  # typer leaves the line breaks of such a paragraph alone

RUN = f"""
Run an experiment of the paper: every method on every seed, with the paper's hyperparameters. What they are:
`orthoptim experiments` and `orthoptim experiments NAME`.

Results go to OUT/EXPERIMENT-ID.jsonl, one line per record, as they come. ID stands for the configuration (scale,
variant, dtype, device, threads, processes), not for methods and seeds: ask for more of them, and only what is missing
is run. A method with other hyperparameters is another contender of the same run, named POGO:lr=0.3: by --set, by --grid
for each value, or by that name among the methods. In a sweep of a network a tenth of the training images is held out
and takes the place of the test images.

A run that was stopped, by Ctrl-C or by a power cut, goes on where it was when the same command is given again. Nothing
that is complete is computed twice. More epochs continue the trainings of a run with fewer, from where they ended, where
the learning rate does not depend on the end (vit, circuits, stepsize; not cnn); their last states stay in
OUT/.checkpoints until then.

Times are seconds of training alone: the clock stops for evaluation and waits for the device. On a CPU, which others may
share, the time of the processor counts (for verdicts, rankings and --timeout); on a GPU that of the wall. A trial that
was stopped by --timeout goes on from there when a longer one is given.

With --nproc N (circuits, cnn, stepsize), N processes train together: each takes its part of every batch, gradients
are summed, and records are those of whole batches. Batches are normalised as a whole, too. So N processes train the
model that one trains, up to rounding; training amplifies that, as it does with another number of threads (by
--dtype float64 the two are seen to agree). All have the same number of threads, the cores shared among them unless
--threads says otherwise; times and memory are those of the first. If one is killed all are started again and go on from
the last checkpoint, to the same results, bit by bit; after {RESTARTS} such losses the run is given up. With --sharded
each process holds its part of every parameter and of the optimizer's state, gathered only where it is needed (FSDP2).

{_AS_IS}Examples:
  orthoptim run pca                                        all methods, minutes
  orthoptim run pca --methods POGO,RGD --seeds 1           two of them, on one seed
  orthoptim run pca --methods 'POGO*' --variant paper      POGO with every landing
  orthoptim run procrustes --set POGO.lr=0.3               another learning rate
  orthoptim run pca --grid lr=0.1,0.2,0.5 --methods POGO   a sweep; the best is named
  orthoptim run pca --plugin mine.py --methods Mine,POGO   a method of your own: docs/researchers.md
  orthoptim run precision --scale paper --device cuda      the paper's sizes, on a GPU
  orthoptim run circuits --units 6 --methods POGO          a larger circuit
  orthoptim run cnn --nproc 4                              four processes, each on a quarter of every batch

{_AS_IS}Exit codes:
  0    all trials have ended (converged, out of budget, diverged or timed out)
  1    a method failed; the others went on
  2    the command, the results, the disk or the processes are not in order; one line says what to do
  130  interrupted
"""

METHODS = """
List the methods that experiments compare, with their options; of one, if named.

Options are set in experiments with --set METHOD.OPTION=VALUE. Those of the base optimizer are set alike:
--set POGO.base=SGD --set POGO.momentum=0.9.
"""
