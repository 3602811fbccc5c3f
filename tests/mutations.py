"""The ways in which tests/mutants.py breaks the product, and the test that has to notice each."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    what: str
    file: str
    old: str
    new: str
    test: str


# the step, the plan and the evaluation
STEP = [
    Mutant(
        "divide by rank-local counts", "src/isostep/train/step.py",
        "scale = self.accelerator.num_processes / window.weight",
        "scale = 1.0 / sum(len(p[self.accelerator.process_index].indices) for p in window.passes)",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "divide by nothing of the ranks", "src/isostep/train/step.py",
        "scale = self.accelerator.num_processes / window.weight", "scale = 1.0 / window.weight",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "drop the short window", "src/isostep/data/plan.py",
        "self.windows_per_epoch = -(-len(lengths)", "self.windows_per_epoch = (len(lengths)",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[1]",
    ),
    Mutant(
        "step the scheduler per rank", "src/isostep/train/step.py",
        "optimizer, split_batches=True", "optimizer, split_batches=False",
        "tests/distributed/test_gradients.py::test_the_scheduler_moves_once_per_optimizer_step",
    ),
    Mutant(
        "shuffle per rank", "src/isostep/data/plan.py",
        "np.random.SeedSequence([self.seed, epoch])",
        "np.random.SeedSequence([self.seed, epoch, int(__import__('os').environ.get('RANK', '0'))])",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "train on a placeholder", "src/isostep/train/step.py",
        'return (losses * batch["weights"]).sum()', "return losses.sum()",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[3]",
    ),
    Mutant(
        "evaluate a placeholder", "src/isostep/train/evaluate.py",
        'real = batch["weights"] > 0', 'real = batch["weights"] >= 0',
        "tests/distributed/test_evaluation.py::test_p2_an_evaluation_equals_the_rows_taken_one_by_one[3]",
    ),
    Mutant(
        "average batch means", "src/isostep/train/evaluate.py",
        "loss = float(losses[order].astype(np.float64).sum() / len(order))",
        "loss = float(np.mean([own[3].mean() for own in gathered if len(own[3])]))",
        "tests/distributed/test_evaluation.py::test_p2_an_evaluation_equals_the_rows_taken_one_by_one[3]",
    ),
]  # fmt: skip

# each protection that a fault in tests/faults/ needs, taken out
FAULTS = [
    Mutant(
        "no backward before the first step", "src/isostep/train/step.py",
        "            self.accelerator.backward(self._loss_sum(batch) * 0.0)\n", "            pass\n",
        "tests/faults/test_kills.py::test_p3_kill_9_of_one_rank_in_a_step[3]",
    ),
    Mutant(
        "a resumed rank draws dropout anew", "src/isostep/train/resume.py",
        "restore_rank(saved, ranks.rank, loop.accelerator.device)", "pass",
        "tests/faults/test_kills.py::test_p3_kill_9_of_one_rank_in_a_step[2]",
    ),
    Mutant(
        "rows after the checkpoint stay", "src/isostep/track/record.py",
        'if row["step"] <= step]', "]",
        "tests/faults/test_kills.py::test_p3_kill_9_of_one_rank_in_a_step[2]",
    ),
    Mutant(
        "save in the place where it is seen", "src/isostep/checkpoint/store.py",
        'return root / f".step-{step:08d}.tmp"', "return step_folder(root, step)",
        "tests/faults/test_kills.py::test_p5_kill_9_of_rank_0_at_every_stage_of_a_save[write]",
    ),
    Mutant(
        "leave what is half written", "src/isostep/checkpoint/store.py",
        'root.glob(".step-*.tmp") if root.is_dir() else ()', "()",
        "tests/faults/test_kills.py::test_p5_kill_9_of_rank_0_at_every_stage_of_a_save[write]",
    ),
    Mutant(
        "ranks outlive their launcher", "src/isostep/train/ranks.py",
        'sys.platform == "linux" and', "False and",
        "tests/faults/test_kills.py::test_kill_9_of_the_launcher_takes_the_ranks_with_it",
    ),
    Mutant(
        "forget the losses since the last row", "src/isostep/train/resume.py",
        "sums[ranks.rank] if same else sum(sums) * ranks.is_main", "0.0",
        "tests/faults/test_kills.py::test_p4_resumed_on_any_number_of_ranks_it_is_the_same_curve[1]",
    ),
    Mutant(
        "start again at the epoch's first window", "src/isostep/train/loop.py",
        "self.sampler.start_at(state.epoch, state.window)", "self.sampler.start_at(state.epoch, 0)",
        "tests/faults/test_kills.py::test_p4_resumed_on_any_number_of_ranks_it_is_the_same_curve[1]",
    ),
    Mutant(
        "deaf to SIGTERM", "src/isostep/train/stop.py",
        "SIGNALS = (signal.SIGTERM, ", "SIGNALS = (",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on"
        "[SIGTERM to the launcher]",
    ),
    Mutant(
        "deaf to SIGUSR1", "src/isostep/train/stop.py",
        "signal.SIGUSR1, signal.SIGINT)", "signal.SIGINT)",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on"
        "[SIGUSR1 to one worker]",
    ),
    Mutant(
        "tell the others nothing of a signal", "src/isostep/train/stop.py",
        "torch.tensor([self.reason is not None, calls]", "torch.tensor([False, calls]",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on"
        "[SIGTERM to one worker]",
    ),
    Mutant(
        "never look for the STOP file", "src/isostep/train/stop.py",
        "if self.file is None or", "if True or",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on[a STOP file]",
    ),
    Mutant(
        "deaf in an evaluation", "src/isostep/train/evaluate.py",
        "if self.stop.poll():", "if False:",
        "tests/faults/test_stops.py::test_p6_inside_an_evaluation_which_is_made_after_the_resume"
        "[SIGTERM to one worker]",
    ),
    Mutant(
        "deaf while it tokenises", "src/isostep/train/stop.py",
        "        if self._preparing:\n", "        if False:\n",
        "tests/faults/test_stops.py::test_p6_in_preprocessing_before_anything_is_trained",
    ),
    Mutant(
        "die of the second signal", "src/isostep/train/stop.py",
        "        self.reason = self.reason or signal", "        signal.signal(number, signal.SIG_DFL)\n"
        "        self.reason = self.reason or signal",
        "tests/faults/test_stops.py::test_a_second_signal_during_the_save_changes_nothing",
    ),
    Mutant(
        "a second Ctrl-C changes nothing", "src/isostep/train/stop.py",
        "ABORT_WITHIN = 5.0", "ABORT_WITHIN = 0.0",
        "tests/faults/test_stops.py::test_a_second_ctrl_c_within_five_seconds_aborts_and_the_older_checkpoint_is_intact",
    ),
    Mutant(
        "save in the place where it is seen, past the grace period", "src/isostep/checkpoint/store.py",
        'return root / f".step-{step:08d}.tmp"', "return step_folder(root, step)",
        "tests/faults/test_stops.py::test_a_save_that_outlasts_the_grace_period_costs_only_itself",
    ),
    Mutant(
        "a full disk is an error like any other", "src/isostep/checkpoint/saving.py",
        "DISK_FULL = 28", "DISK_FULL = -1",
        "tests/faults/test_saves.py::test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact"
        "[1-full]",
    ),
    Mutant(
        "leave a failed save's files", "src/isostep/checkpoint/saving.py",
        "shutil.rmtree(made, ignore_errors=True)", "pass",
        "tests/faults/test_saves.py::test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact"
        "[0-raise]",
    ),
    Mutant(
        "a save's failure stays with its rank", "src/isostep/checkpoint/saving.py",
        "self.ranks.agree(lambda: self._write(made, state, sums))", "self._write(made, state, sums)",
        "tests/faults/test_saves.py::test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact"
        "[1-raise]",
    ),
    Mutant(
        "take a checkpoint as it is", "src/isostep/checkpoint/store.py",
        "            verify(folder)\n        except", "            pass\n        except",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[weights cut off]",
    ),
    Mutant(
        "do not compare hashes", "src/isostep/checkpoint/store.py",
        "if describe(path).xxh3 != digest:", "if False:",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[a flipped bit in the optimizer]",
    ),
    Mutant(
        "do not miss a file", "src/isostep/checkpoint/store.py",
        "        path = folder / name\n", "        path = folder / name\n        if not path.exists():\n"
        "            continue\n",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[no rank file]",
    ),
    Mutant(
        "fail on a manifest that is no JSON", "src/isostep/checkpoint/store.py",
        "except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:", "except KeyError as error:",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[an empty manifest]",
    ),
    Mutant(
        "an unusable checkpoint asked for by name is passed over", "src/isostep/checkpoint/saving.py",
        "    store.verify(asked)\n    if not", "    if not",
        "tests/faults/test_saves.py::test_an_unusable_checkpoint_asked_for_by_name_is_exit_code_6",
    ),
    Mutant(
        "unpickle a checkpoint", "src/isostep/checkpoint/contents.py",
        '        with safe_open(path, framework="pt") as file:',
        '        __import__("pickle").loads(path.read_bytes()) if path.read_bytes()[:1] == b"\\x80" else None\n'
        '        with safe_open(path, framework="pt") as file:',
        "tests/faults/test_saves.py::test_p10_no_file_of_a_checkpoint_is_unpickled_even_with_a_manifest_that_vouches_"
        "for_it[optimizer.safetensors]",
    ),
    Mutant(
        "apply a gradient that is not finite", "src/isostep/train/step.py",
        "(~torch.isfinite(norm)).to(torch.float32)", "torch.zeros(())",
        "tests/faults/test_divergence.py::test_p7_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all[nan]",
    ),
    Mutant(
        "go on for ever", "src/isostep/train/loop.py",
        "if self.state.nonfinite_in_a_row >= limit:", "if False:",
        "tests/faults/test_divergence.py::"
        "test_p7_for_ever_it_ends_the_run_and_neither_the_best_nor_a_checkpoint_holds_it",
    ),
    Mutant(
        "wait for ever", "src/isostep/train/ranks.py",
        "InitProcessGroupKwargs(timeout=timedelta(seconds=config.run.timeout))",
        "InitProcessGroupKwargs(timeout=timedelta(seconds=900))",
        "tests/faults/test_hangs_and_writers.py::"
        "test_a_rank_that_hangs_is_named_with_its_phase_and_the_run_ends_within_the_timeout",
    ),
    Mutant(
        "do not say who is silent", "src/isostep/train/watch.py",
        "if now - beat > SILENT else", "if False else",
        "tests/faults/test_hangs_and_writers.py::"
        "test_a_rank_that_hangs_is_named_with_its_phase_and_the_run_ends_within_the_timeout",
    ),
    Mutant(
        "do not say which rows a loader failed on", "src/isostep/data/loader.py",
        "rows {', '.join(map(str, part.indices))} can't be read: {error}", "{error}",
        "tests/faults/test_hangs_and_writers.py::test_a_loaders_worker_that_fails_is_one_error_that_names_the_rows",
    ),
    Mutant(
        "let W&B end the run", "src/isostep/track/wandb.py",
        "except Exception as error:  # whatever the client raises: the run matters more",
        "except KeyError as error:",
        "tests/faults/test_hangs_and_writers.py::"
        "test_p8_a_wandb_server_that_is_down_costs_its_timeout_and_nothing_else",
    ),
    Mutant(
        "two writers", "src/isostep/track/lock.py",
        "if holder is not None and not self._is_dead(holder):", "if False:",
        "tests/faults/test_hangs_and_writers.py::"
        "test_a_second_start_in_a_folder_in_use_is_refused_by_the_holders_name_and_costs_the_first_nothing",
    ),
    Mutant(
        "wait for a W&B server that is gone", "src/isostep/track/wandb.py",
        "            finish_timeout=FINISH_TIMEOUT,  # holds for the end of the process, too\n",
        "",
        "tests/faults/test_trackers.py::test_p8_a_wandb_server_that_goes_away_in_mid_run_costs_a_bounded_wait_at_the_end",
    ),
    Mutant(
        "let W&B's service reach into imports", "src/isostep/track/wandb.py",
        "import_hooks.unregister_all_post_import_hooks()",
        "pass",
        "tests/faults/test_trackers.py::test_p8_a_wandb_client_whose_service_dies_costs_a_warning",
    ),
    Mutant(
        "another W&B run at each start", "src/isostep/track/wandb.py",
        "    if not path.exists():\n        path.parent",
        "    if True:\n        path.parent",
        "tests/faults/test_trackers.py::test_a_killed_run_is_one_wandb_run_with_each_row_once_in_each_part",
    ),
    Mutant(
        "write the environment down", "src/isostep/track/environment.py",
        '"slurm_job": os.environ.get("SLURM_JOB_ID")',
        '"slurm_job": dict(os.environ)',
        "tests/faults/test_secrets.py::test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere",
    ),
    Mutant(
        "write a password into config.yaml", "src/isostep/track/folder.py",
        "dump(redact(config.to_dict()))",
        "dump(config.to_dict())",
        "tests/faults/test_secrets.py::test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere",
    ),
    Mutant(
        "write a password into the model card", "src/isostep/checkpoint/card.py",
        "settings = redact(config.to_dict())",
        "settings = config.to_dict()",
        "tests/faults/test_secrets.py::test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere",
    ),
    Mutant(
        "write a command's password into the model card", "src/isostep/checkpoint/card.py",
        "portable(redact(list(command)))",
        "portable(list(command))",
        "tests/faults/test_secrets.py::test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere",
    ),
    Mutant(
        "send a password to W&B", "src/isostep/track/wandb.py",
        "shown = redact(config.to_dict())",
        "shown = config.to_dict()",
        "tests/faults/test_secrets.py::test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere",
    ),
    Mutant(
        "send a command's password to W&B", "src/isostep/track/wandb.py",
        "sys.argv = redact(own)",
        "sys.argv = own",
        "tests/faults/test_secrets.py::test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere",
    ),
    Mutant(
        "write a password into status.json", "src/isostep/track/record.py",
        '"reason": redact(reason)',
        '"reason": reason',
        "tests/faults/test_secrets.py::test_p10_an_address_with_a_password_that_cannot_be_used_is_named_without_it[data.train]",
    ),
    Mutant(
        "print a password", "src/isostep/cli/main.py",
        "print(redact(str(error))",
        "print(str(error)",
        "tests/faults/test_secrets.py::test_p10_an_address_with_a_password_that_cannot_be_used_is_named_without_it[data.train]",
    ),
    Mutant(
        "compare what was redacted with what was not", "src/isostep/track/folder.py",
        "changed_keys(before, redact(config.to_dict()))",
        "changed_keys(before, config.to_dict())",
        "tests/faults/test_secrets.py::test_a_run_whose_address_was_redacted_is_the_same_run_at_the_next_start",
    ),
    Mutant(
        "run what a stored config.yaml says", "src/isostep/track/folder.py",
        "yaml.safe_load(",
        "yaml.unsafe_load(",
        "tests/faults/test_bombs.py::test_p10_a_runs_config_yaml_is_data_alone",
    ),
    Mutant(
        "unpickle a cache's meta.json", "src/isostep/data/token_cache.py",
        'json.loads((folder / META).read_text(encoding="utf-8"))',
        '__import__("pickle").loads((folder / META).read_bytes())',
        "tests/faults/test_bombs.py::test_p10_tokens_in_the_cache_are_made_anew_where_they_were_replaced[meta.json]",
    ),
    Mutant(
        "read pickled weights", "src/isostep/models/load.py",
        "    _check_safetensors(config)\n    with",
        "    with",
        "tests/faults/test_bombs.py::test_p10_pickled_weights_are_refused_by_name",
    ),
    Mutant(
        "unpickle status.json", "src/isostep/track/folder.py",
        'found = json.loads(path.read_text(encoding="utf-8"))',
        'found = __import__("pickle").loads(path.read_bytes())',
        "tests/faults/test_bombs.py::test_p10_a_status_or_lock_that_is_none_counts_as_missing[status.json]",
    ),
    Mutant(
        "unpickle a lock", "src/isostep/track/lock.py",
        'json.loads(self.path.read_text(encoding="utf-8"))',
        '__import__("pickle").loads(self.path.read_bytes())',
        "tests/faults/test_bombs.py::test_p10_a_status_or_lock_that_is_none_counts_as_missing[.lock]",
    ),
    Mutant(
        "trust a record", "src/isostep/track/record.py",
        "except ValueError as error:",
        "except KeyError as error:",
        "tests/faults/test_bombs.py::test_p10_a_runs_metrics_are_data_alone",
    ),
    Mutant(
        "trust cached tokens", "src/isostep/data/tokens.py",
        "except (OSError, pa.ArrowException) as error:",
        "except KeyError as error:",
        "tests/faults/test_bombs.py::test_p10_a_cache_that_lies_about_its_size_is_refused_by_name[train.arrow]",
    ),
    Mutant(
        "trust a cached tokenizer", "src/isostep/models/tiny.py",
        "except Exception as error:  # whatever",
        "except KeyError as error:  # whatever",
        "tests/faults/test_bombs.py::test_p10_a_cache_that_lies_about_its_size_is_refused_by_name[tokenizer.json]",
    ),
    Mutant(
        "a dead process holds its lock", "src/isostep/track/lock.py",
        "            except psutil.NoSuchProcess:\n                return True",
        "            except psutil.NoSuchProcess:\n                return False",
        "tests/faults/test_stale_lock.py::test_p8_the_lock_of_a_run_that_was_killed_whole_is_taken_over",
    ),
    Mutant(
        "a longer run keeps the old rate", "src/isostep/checkpoint/contents.py",
        "base * factor(scheduler.last_epoch)",
        'state["next_rate"]',
        "tests/faults/test_started_again.py::test_a_finished_run_made_longer_goes_on_with_the_rates_of_the_longer_schedule[max_steps]",
    ),
    Mutant(
        "a run may be made shorter", "src/isostep/track/folder.py",
        "if after < before:",
        "if after < before - 99:",
        "tests/faults/test_started_again.py::test_a_run_made_shorter_is_refused_and_nothing_of_it_is_touched[max_steps]",
    ),
    Mutant(
        "a seed may change", "src/isostep/track/folder.py",
        "and key not in FREE_KEYS",
        'and key not in FREE_KEYS | {"run.seed"}',
        "tests/faults/test_started_again.py::test_each_of_them_alone_is_refused",
    ),
    Mutant(
        "tracking may not change", "src/isostep/track/folder.py",
        'FREE_SECTIONS = ("eval", "checkpoint", "track")',
        'FREE_SECTIONS = ("eval", "checkpoint")',
        "tests/faults/test_started_again.py::test_evaluations_saves_and_rows_may_change_and_the_training_is_the_same",
    ),
    Mutant(
        "other data are the same", "src/isostep/train/resume.py",
        'if was["data"] != now["data"]:',
        "if False:",
        "tests/faults/test_started_again.py::test_other_rows_in_the_same_file_are_refused",
    ),
    Mutant(
        "another precision is the same", "src/isostep/train/resume.py",
        'if was["precision"] != now["precision"]:',
        "if False:",
        "tests/faults/test_started_again.py::test_another_precision_is_refused",
    ),
    Mutant(
        "keep the best of another future", "src/isostep/train/resume.py",
        'or loop.total_steps != past["total_steps"]:',
        "or False:",
        "tests/faults/test_started_again.py::test_an_interrupted_run_made_longer_goes_on_from_its_checkpoint_and_keeps_no_best_of_the_old_schedule",
    ),
    Mutant(
        "keep the checkpoints of another future", "src/isostep/train/resume.py",
        "    supersede(root, state.step)\n",
        "",
        "tests/faults/test_started_again.py::test_a_finished_run_goes_back_to_a_checkpoint_asked_for_by_path",
    ),
    Mutant(
        "go back at each start", "src/isostep/checkpoint/saving.py",
        "if _went_back_before(root, resume):",
        "if False:",
        "tests/faults/test_started_again.py::test_resume_by_path_goes_back_to_it_and_the_same_command_goes_on_from_there",
    ),
    Mutant(
        "splice two runs", "src/isostep/checkpoint/saving.py",
        "if asked.resolve().parent != root.resolve() and holds_a_run(root.parent):",
        "if False:",
        "tests/faults/test_started_again.py::test_a_path_that_is_no_checkpoint_or_of_another_run_is_exit_code_6",
    ),
    Mutant(
        "branch off with another rate", "src/isostep/track/folder.py",
        'if resume not in ("auto", "never") and (origin / "config.yaml").is_file():',
        "if False:",
        "tests/faults/test_started_again.py::test_a_new_run_branches_off_anothers_checkpoint_and_only_with_its_configuration",
    ),
    Mutant(
        "wake a run that stopped early", "src/isostep/train/loop.py",
        "ended = self.state.stopped_early\n        if self.config",
        "ended = False\n        if self.config",
        "tests/faults/test_started_again.py::test_a_run_that_stopped_early_stays_stopped_when_it_is_made_longer_and_says_so",
    ),
]  # fmt: skip
