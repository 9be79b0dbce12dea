"""The graders: `NN_name.py` is found by the name of its exercise. The other files are what graders are made of.

    01 micro_batches                                       05, 10 schedules, cycles, wrong_rows
    02 rings, ring_shares, ring_guesses, ring_traffic      08 cuts, wrong_cuts
    03 replicas, overlaps, averages                        09 built, trained
    04 placed, placed_forward, placed_intact, placed_training, wrong_places
    06 staged, stage_steps, stage_laws, wrong_stages       06, 07 plays, returns
    07 mistaken, recomputed, alive                         04, 06, 07 complaints
    02, 03 complete
"""
